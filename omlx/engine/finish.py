"""The end of a request: stops in its newest tokens, its statistics, its error."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass

from omlx.engine.device_errors import DeviceFault, FaultKind
from omlx.engine.row import Row
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.types import Failed, Request
from omlx.errors import BadRequest, DeviceFull, EngineError, OmlxError
from omlx.records import RequestStats

log = logging.getLogger("omlx.engine")


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop token; `token` None: a stop string, or the end of structured output."""

    token: int | None


def truncate_at_stop(
    request: Request, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], Stop | None]:
    """Return the tokens up to the first stop, it included. Advances stop matcher and mask.

    Raises EngineError for a token that the mask does not allow.
    """
    for i, token in enumerate(tokens):
        if token in request.stop_ids:
            return tokens[: i + 1], Stop(token)
        if request.stop is not None and request.stop.push(token):
            return tokens[: i + 1], Stop(None)
        if request.mask is not None:
            if not request.mask.advance(token):
                raise EngineError("engine.mask", token=token)
            if request.mask.ended:
                return tokens[: i + 1], Stop(None)
    return tokens, None


def failed(request: Request, error: Exception) -> Failed:
    """Return the last event of a request that raised `error`. The log has its frames, the client
    its type."""
    if isinstance(error, OmlxError):
        return Failed(request.id, error)
    log.error("a step failed", extra={"fields": {"request": request.id}}, exc_info=error)
    return Failed(request.id, EngineError("engine.step", detail=type(error).__name__))


def device_error(row: Row, fault: DeviceFault, alone: bool) -> OmlxError:
    """Return the error of a request that a failure of the device ended, after a second try.

    A request that was `alone` when memory ran out does not fit at all.
    """
    if fault.kind is not FaultKind.OUT_OF_MEMORY:
        return EngineError("device.failed", kind=str(fault.kind))
    tokens = len(row.tokens)
    if alone:
        return BadRequest("device.prompt_memory", param="messages", tokens=tokens)
    return DeviceFull("device.memory", tokens=tokens)


def request_stats(row: Row, speculator: Speculator) -> RequestStats:
    clock, strategy = row.clock, speculator.effective_strategy(row)
    prompt_n = row.request.prompt_n
    return RequestStats(
        prompt_n=prompt_n,
        cached_n=min(row.cached, prompt_n),
        predicted_n=len(row.tokens) - prompt_n,
        queue_ms=_ms(clock.submitted, clock.admitted),
        prompt_ms=_ms(clock.admitted, clock.first_token),
        predicted_ms=_ms(clock.first_token, clock.last_token),
        seed=row.request.sampling.seed,
        drafters=deepcopy(speculator.stats(row.id)),
        speculation=speculator.reason(row),
        strategy=str(strategy),
        strategy_notes=strategy.notes,
        gates=speculator.gates(row),
        image_n=sum(span.stop - span.start for span in row.request.spans),
        speedup=speculator.speedup(row),
        restarts=row.restarts,
    )


def _ms(start: float, end: float) -> float:
    return max(0.0, end - start) * 1000 if start and end else 0.0
