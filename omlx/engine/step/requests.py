"""The beginning and the end of a request: admission; stops, statistics, errors. Pure Python.

The head of the queue is the most urgent request; of several, the first of the group with the fewest
rows: a client's request with many choices does not keep all rows while another waits. The head
waits for a free row, for memory, and for the prompt of a sibling choice (`n` > 1), whose prefix is
then restored. Less urgent rows give way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field, replace

from omlx.engine.device_errors import DeviceFault, FaultKind
from omlx.engine.memory import MemoryClient, MemoryGuard, Verdict, check_fits
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.step.masking import KnownTokensMask
from omlx.engine.step.prefill import PrefillChunk
from omlx.engine.step.priority import QUANTUM_S, least_urgent, most_urgent, starved, wait_begins
from omlx.engine.step.row import Clock, Row, Status
from omlx.engine.types import Event, Failed, Limits, Request
from omlx.engine.vision.features import Looks
from omlx.engine.vision.spans import words
from omlx.errors import BadRequest, DeviceFull, EngineError, OmlxError, Overloaded
from omlx.records import DrafterStats, RequestStats, add_drafters


@dataclass(eq=False)
class AdmissionQueue:
    """The requests of one model that wait to be admitted.

    `pinned_weights` are the bytes of weights that stay loaded whichever other models are evicted;
    None means all. `refused` holds Failed events of requests that the memory guard refused, until
    they are published.
    """

    limits: Limits
    _prefix: PrefixReuse
    _looks: Looks
    memory: MemoryGuard
    _clock: Callable[[], float]
    _chunk: PrefillChunk
    waiting: list[Row] = field(default_factory=list)
    refused: list[Event] = field(default_factory=list)
    pinned_weights: int | None = None
    used_at: float = field(init=False)
    _blocked: Row | None = None  # a head that did not fit
    _blocked_version: int = 0  # of the guard, then
    _next: Row | None = None  # for which a row gave way
    _newest_id: int = 0  # of a row

    def __post_init__(self) -> None:
        self.used_at = self._clock()

    @property
    def blocked_since(self) -> float | None:
        """When the head was submitted, if it waits for memory; else None."""
        if self._blocked is None:
            return None
        return self._blocked.clock.submitted

    def submit(self, request: Request) -> None:
        """Append a request. Raises Overloaded if the queue is full, BadRequest if it is invalid."""
        validate(request, self.limits, sees=self._looks.tower is not None)
        if request.mask is not None and self.limits.missing_ids:
            mask = KnownTokensMask(request.mask, self.limits.vocab_size)
            request = replace(request, mask=mask)
        layout, least = self._prefix.layout, self._chunk.min_activations
        check_fits(self.memory, request, layout, self.pinned_weights, least)
        waiting, limit = len(self.waiting), self.limits.max_waiting
        if waiting >= limit:
            raise Overloaded("engine.queue_full", waiting=waiting, limit=limit)
        end = self.limits.context_length
        if request.max_tokens is not None:
            end = min(end, request.prompt_n + request.max_tokens)
        self._newest_id += 1
        self.used_at = self._clock()
        clock = Clock(submitted=self.used_at)
        tokens, since = list(request.tokens), self.used_at
        self.waiting.append(Row(self._newest_id, request, tokens, end, clock, waiting_since=since))

    def requeue(self, row: Row, *, cold: bool) -> None:
        """Have the tokens of a row that was given up computed again, before other requests."""
        self._newest_id += 1
        since = wait_begins(row, self._clock())
        self.waiting.insert(0, row.as_restarted(self._newest_id, since, cold=cold))

    def displace(self, row: Row, speculator: Speculator) -> None:
        """Have a displaced row wait, before others of equal priority."""
        self._newest_id += 1
        self._next = self._next_or(most_urgent(self.waiting, ()))
        drafters, since = drafter_stats(row, speculator), wait_begins(row, self._clock())
        self.waiting.insert(0, row.as_displaced(self._newest_id, since, drafters))

    def displaceable(self, running: Sequence[Row], *, freeing: bool) -> Row | None:
        """Return the row to give way to a waiting request, if any.

        For memory, rows give way in turn: not while the next step is `freeing` some.
        """
        if not self.waiting:
            return None
        head = self._next_or(most_urgent(self.waiting, running))
        full = len(running) >= self.limits.max_rows
        blocked = self._is_blocked(head) and not freeing
        if not (full or blocked) or self._sibling_reads(head, running):
            return None
        return least_urgent(running, head.request.priority, self._clock())

    def may_admit(self, running: list[Row]) -> bool:
        """Whether the head may be judged: a row is free, and memory changed since the last try."""
        if not self.waiting or len(running) >= self.limits.max_rows:
            return False
        head = self._head(running)
        return not self._is_blocked(head) and not self._sibling_reads(head, running)

    def changes(self, running: list[Row]) -> bool:
        """Whether a request may be judged, or displaces a row."""
        if not self.waiting:
            return False
        return self.may_admit(running) or self.displaceable(running, freeing=False) is not None

    def admissions(
        self, client: MemoryClient, running: list[Row], need_of: Callable[[Row], int]
    ) -> Iterator[Row]:
        """Remove and yield what may start now. `need_of` returns the bytes that a row takes.

        The caller appends each to `running` before the next one is judged.
        """
        while self.may_admit(running):
            head = self._head(running)
            need = need_of(head)
            activations, since = self._chunk.min_activations(head.prompt_len), head.clock.submitted
            verdict = self.memory.admit(client, head.request, need, since, activations)
            if verdict is Verdict.NEXT_STEP:
                return
            if verdict is Verdict.WAIT_FOR_CHANGE:
                self._blocked, self._blocked_version = head, self.memory.version
                return
            head.admit(self._clock(), QUANTUM_S if head is self._starved(running) else 0.0)
            self.unblock()
            self._next = None
            self.waiting = [row for row in self.waiting if row is not head]
            if verdict is Verdict.ADMIT:
                yield head
            else:
                self.refused.append(
                    Failed(head.request.id, self.memory.refusal(need + activations))
                )

    def unblock(self) -> None:
        """Stop waiting for memory, so that other models' requests are judged again."""
        if self._blocked is not None:
            self._blocked = None
            self.memory.changed()

    def remove(self, request_ids: Set[str]) -> list[Row]:
        """Remove and return these requests."""
        removed = [row for row in self.waiting if row.request.id in request_ids]
        self.waiting = [s for s in self.waiting if s.request.id not in request_ids]
        return removed

    def _head(self, running: Iterable[Row]) -> Row:
        """Return the request whose turn it is. Requires that one waits."""
        return self._starved(running) or self._next_or(most_urgent(self.waiting, running))

    def _starved(self, running: Iterable[Row]) -> Row | None:
        """Return the starving request, unless freed memory or a row is for another."""
        blocked = self._blocked is not None and self._blocked_version == self.memory.version
        if self._next is not None or blocked:
            return None
        return starved(self.waiting, running, self._clock())

    def _next_or(self, head: Row) -> Row:
        """Return the request for which a row gave way, or a more urgent `head`."""
        if not any(row is self._next for row in self.waiting):
            self._next = None
        if self._next is None or self._next.request.priority > head.request.priority:
            return head
        return self._next

    def _is_blocked(self, head: Row) -> bool:
        """Whether a request has found no memory, and nothing has changed since."""
        return head is self._blocked and self._blocked_version == self.memory.version

    def _sibling_reads(self, head: Row, running: Iterable[Row]) -> bool:
        """Whether a running sibling choice reads the same prompt, which `head` can then restore."""
        request = head.request
        if not request.sampling.choice or request.prompt_logprobs is not None:
            return False
        siblings = (row for row in running if row.request.tokens is request.tokens)
        reads = any(row.status is Status.PREFILL for row in siblings)
        return reads and self._prefix.off_reason is None


def validate(request: Request, limits: Limits, *, sees: bool = False) -> None:
    """Raise BadRequest for an empty or too long prompt, an unknown token id, or a wrong number.

    Only a model that `sees` has a use for images.
    """
    tokens, sampling = request.tokens, request.sampling
    if not limits.generates:
        raise BadRequest("model.encoder", param="model")
    if not tokens:
        raise BadRequest("engine.prompt_empty", param="messages")
    if len(tokens) >= (limit := limits.context_length):
        raise BadRequest(
            "engine.prompt_too_long", param="messages", tokens=len(tokens), limit=limit
        )
    if request.max_tokens is not None and request.max_tokens < 0:
        raise BadRequest("engine.max_tokens", param="max_tokens", value=request.max_tokens)
    if not sampling.temperature >= 0.0:  # refuses NaN, too
        raise BadRequest("engine.temperature", param="temperature", value=str(sampling.temperature))
    if request.spans:
        _validate_images(request, sees=sees)
        tokens = tuple(words(tokens))
    biased = [token for token, _ in sampling.logit_bias]
    for param, ids in (
        ("messages", tokens),
        ("prediction", request.speculation.prediction),
        ("logit_bias", biased),
    ):
        if ids and not 0 <= min(ids) <= max(ids) < limits.vocab_size:
            raise BadRequest("engine.token_id", param=param, size=limits.vocab_size)


def _validate_images(request: Request, *, sees: bool) -> None:
    """Raise BadRequest for images that the model cannot read, or that the prompt cannot show."""
    if not sees:
        raise BadRequest("image.unsupported", param="messages")
    if request.prompt_logprobs is not None:
        raise BadRequest("image.prompt_logprobs", param="messages")
    hidden = sum(span.stop - span.start for span in request.spans)
    names = {image.name for image in request.images}
    shown = {span.image for span in request.spans}
    last = request.spans[-1].stop
    if hidden != len(request.tokens) - len(words(request.tokens)) or shown - names:
        raise BadRequest("image.marker", param="messages")
    if last >= len(request.tokens):  # the last token of a prompt is sampled from
        raise BadRequest("image.last", param="messages")


log = logging.getLogger("omlx.engine")


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop token; `token` None: a stop string, or the end of structured output."""

    token: int | None


def truncate_at_stop(
    request: Request, tokens: tuple[int, ...]
) -> tuple[tuple[int, ...], Stop | None]:
    """Return the tokens up to and with the first stop. Advances stop matcher and mask.

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


def request_stats(row: Row, speculator: Speculator, context_length: int) -> RequestStats:
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
        context_n=context_length,
        drafters=drafter_stats(row, speculator),
        speculation=speculator.reason(row),
        strategy=str(strategy),
        strategy_notes=strategy.notes,
        gates=speculator.gates(row),
        image_n=sum(span.stop - span.start for span in row.request.spans),
        speedup=speculator.speedup(row),
        step_deviation=speculator.step_deviation(row),
        restarts=row.restarts,
        displaced=row.displaced,
    )


def drafter_stats(row: Row, speculator: Speculator) -> dict[str, DrafterStats]:
    """Return statistics of a row's drafters, also of the time before it gave way."""
    return add_drafters(row.earlier, deepcopy(speculator.stats(row.id)))


def _ms(start: float, end: float) -> float:
    return max(0.0, end - start) * 1000 if start and end else 0.0
