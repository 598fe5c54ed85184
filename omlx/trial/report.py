"""A trial as data: what is streamed while it runs, answered afterwards and kept. No text that was asked or answered."""

from __future__ import annotations

from typing import Any

from omlx.errors import Reason
from omlx.trial.configurations import MAX_ROUNDS, PLAIN, TrialConfiguration
from omlx.trial.samples import Exactness, Samples, Spread
from omlx.trial.texts import Kind
from omlx.trial.trial import Plan, Trial
from omlx.trial.verdict import Change, Verdict

Json = dict[str, Any]


def report(trial: Trial) -> Json:
    """`done` of `total` answers; `left_s` is None before anything can be said. What is not measured yet is null."""
    plan, now = trial.plan, trial.now
    return {
        "id": trial.id,
        "model": plan.model,
        "drafts": list(plan.drafts),
        "kinds": [kind.value for kind in plan.kinds],
        "tokens": plan.tokens,
        "state": trial.state.value,
        "reason": None if trial.reason is None else _reason(trial.reason),
        "done": trial.done,
        "total": trial.total,
        "rounds": trial.rounds,
        "most_rounds": MAX_ROUNDS,
        "left_s": None if trial.left_s is None else round(trial.left_s, 1),
        "discarded": trial.discarded,
        "now": None
        if now is None
        else {"setup": now.configuration.name, "kind": now.kind.value, "tokens": trial.now_tokens},
        "setups": [configuration_record(configuration) for configuration in plan.configurations],
        "cells": [
            _cell(trial.samples, configuration, kind)
            for configuration in plan.configurations
            for kind in plan.kinds
        ],
        "exact": _exactness(trial.samples.exactness()),
        "verdict": None if trial.verdict is None else _verdict(trial.verdict),
    }


def configuration_record(configuration: TrialConfiguration) -> Json:
    return {
        "name": configuration.name,
        "strategy": configuration.strategy,
        "draft": configuration.draft,
    }


def of_draft(plan: Plan, samples: Samples, draft: str) -> Json:
    """The last figures of one draft, as the draft picker shows them: how fast `auto` was with it."""
    configuration = TrialConfiguration("auto", draft)
    overall = list(samples.overall(configuration).values())
    kinds = {
        kind.value: _ratio(spread)
        for kind in plan.kinds
        if (spread := samples.spread(configuration, kind))
    }
    return {"overall": _ratio(Spread.of(overall)) if overall else None, "kinds": kinds}


def _cell(samples: Samples, configuration: TrialConfiguration, kind: Kind) -> Json:
    """One configuration with one kind of text: `rate` in tokens per second, `speedup` against plain decoding."""
    rates, spread = samples.rates(configuration, kind), samples.spread(configuration, kind)
    acceptance = samples.acceptance(configuration, kind)
    return {
        "setup": configuration.name,
        "kind": kind.value,
        "samples": len(rates),
        "rate": _figures(Spread.of(rates), 1) if rates else None,
        "speedup": None if spread is None or configuration == PLAIN else _ratio(spread),
        "acceptance": None if acceptance is None else round(acceptance, 3),
    }


def _ratio(spread: Spread) -> Json:
    return {**_figures(spread, 3), "gain": spread.gain.value}


def _figures(spread: Spread, digits: int) -> Json:
    return {name: round(getattr(spread, name), digits) for name in ("low", "median", "high")}


def _exactness(exactness: Exactness) -> Json:
    first = exactness.first
    at = None
    if first is not None:
        at = {
            "kind": first.kind.value,
            "round": first.number + 1,
            "setup": first.configuration,
            "token": first.token,
        }
    reason = Reason(
        "trial.exact.same" if exactness.same == exactness.of else "trial.exact.differ",
        {"same": exactness.same, "of": exactness.of},
    )
    return {"same": exactness.same, "of": exactness.of, "first": at, **_reason(reason)}


def _verdict(verdict: Verdict) -> Json:
    """The sentence of `code` has the fields `draft`, `gains` and `losses`: see `omlx.trial.render_verdict`."""
    return {
        "code": verdict.code,
        "draft": verdict.draft,
        "gains": [_change(change) for change in verdict.gains],
        "losses": [_change(change) for change in verdict.losses],
        "setup": None
        if verdict.configuration is None
        else configuration_record(verdict.configuration),
    }


def _change(change: Change) -> Json:
    return {"kind": change.kind.value, "speedup": round(change.speedup, 3)}


def _reason(reason: Reason) -> Json:
    return {"code": reason.code, "params": reason.params, "message": reason.message}
