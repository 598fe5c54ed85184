"""A trial as JSON: streamed while it runs, returned afterwards, stored. No prompts or answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from omlx.errors import Reason
from omlx.measure.exactness import Exactness
from omlx.measure.spread import Spread
from omlx.trial.configurations import MAX_ROUNDS, PLAIN, TrialConfiguration
from omlx.trial.samples import Place, Samples
from omlx.trial.texts import Kind
from omlx.trial.trial import Plan, Trial
from omlx.trial.verdict import Change, Verdict

Json = dict[str, Any]
Value = TypeVar("Value")
Record = TypeVar("Record")


def report(trial: Trial) -> Json:
    """Return the trial's state. What is not measured yet is null; `left_s` is in seconds."""
    plan, samples = trial.plan, trial.samples
    cells = []
    for configuration in plan.configurations:
        cells += [_cell(samples, configuration, kind) for kind in plan.kinds]
    return {
        "id": trial.id,
        "model": plan.model,
        "drafts": list(plan.drafts),
        "kinds": [kind.value for kind in plan.kinds],
        "tokens": plan.tokens,
        "state": trial.state.value,
        "reason": _optional(_reason, trial.reason),
        "done": trial.done,
        "total": trial.total,
        "rounds": trial.rounds,
        "most_rounds": MAX_ROUNDS,
        "left_s": _optional(partial(round, ndigits=1), trial.left_s),
        "discarded": trial.discarded,
        "now": _optional(partial(_now, tokens=trial.now_tokens), trial.now),
        "setups": [configuration_record(item) for item in plan.configurations],
        "cells": cells,
        "exact": _exactness(samples.exactness()),
        "draft_error": _draft_error(samples),
        "verdict": _optional(verdict_record, trial.verdict),
    }


def configuration_record(configuration: TrialConfiguration) -> Json:
    return {
        "name": configuration.name,
        "strategy": configuration.strategy,
        "draft": configuration.draft,
    }


def draft_record(plan: Plan, samples: Samples, draft: str) -> Json:
    """Return the speed-ups of `auto` with one draft, as the draft picker shows them."""
    configuration = TrialConfiguration("auto", draft)
    overall = list(samples.overall(configuration).values())
    kinds = {}
    for kind in plan.kinds:
        spread = samples.spread(configuration, kind)
        if spread is not None:
            kinds[kind.value] = _speedup(spread)
    return {"overall": _optional(_speedup, _spread(overall)), "kinds": kinds}


def _optional(convert: Callable[[Value], Record], value: Value | None) -> Record | None:
    """Return the converted value, or None for None."""
    return None if value is None else convert(value)


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread.of(values) if values else None


def _now(place: Place, tokens: int) -> Json:
    return {"setup": place.configuration.name, "kind": place.kind.value, "tokens": tokens}


def _cell(samples: Samples, configuration: TrialConfiguration, kind: Kind) -> Json:
    """One configuration with one kind of text; `rate` in tokens per second."""
    rates = samples.rates(configuration, kind)
    # plain decoding is its own reference
    spread = None if configuration == PLAIN else samples.spread(configuration, kind)
    acceptance = samples.acceptance_rate(configuration, kind)
    return {
        "setup": configuration.name,
        "kind": kind.value,
        "samples": len(rates),
        "rate": _optional(partial(_figures, digits=1), _spread(rates)),
        "speedup": _optional(_speedup, spread),
        "acceptance": _optional(partial(round, ndigits=3), acceptance),
    }


def _speedup(spread: Spread) -> Json:
    return {**_figures(spread, 3), "gain": spread.gain.value}


def _figures(spread: Spread, digits: int) -> Json:
    return {
        "low": round(spread.low, digits),
        "median": round(spread.median, digits),
        "high": round(spread.high, digits),
    }


def _draft_error(samples: Samples) -> Json | None:
    """How many answers a drafter has failed in, if any, and its first error."""
    errors = samples.draft_errors
    if not errors:
        return None
    counts = {"failed": len(errors), "of": len(samples.by_place)}
    return _reason(Reason("trial.draft_failed", {**counts, "detail": errors[0]}))


def _exactness(exactness: Exactness[Place]) -> Json | None:
    """None: no answer could be compared with a plain one."""
    if not exactness.of:
        return None
    first = None
    if exactness.first is not None:
        place = exactness.first.place
        first = {
            "kind": place.kind.value,
            "round": place.number + 1,
            "setup": place.configuration.name,
            "token": exactness.first.token,
        }
    code = "trial.exact.same" if exactness.same == exactness.of else "trial.exact.differ"
    reason = Reason(code, {"same": exactness.same, "of": exactness.of})
    return {"same": exactness.same, "of": exactness.of, "first": first, **_reason(reason)}


def verdict_record(verdict: Verdict) -> Json:
    """The sentence of `code` has the fields `draft`, `gains`, `losses`; see `render_verdict`."""
    return {
        "code": verdict.code,
        "draft": verdict.draft,
        "gains": [_change(change) for change in verdict.gains],
        "losses": [_change(change) for change in verdict.losses],
        "setup": _optional(configuration_record, verdict.configuration),
    }


def _change(change: Change) -> Json:
    spread = change.spread
    return {
        "kind": change.kind.value,
        "speedup": round(spread.median, 3),
        "low": round(spread.low, 3),
        "high": round(spread.high, 3),
    }


def _reason(reason: Reason) -> Json:
    return {"code": reason.code, "params": reason.params, "message": reason.message}
