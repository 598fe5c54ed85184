"""What GET /v1/models/{id} says of speculation, batching and kept prefixes: configured, in effect, measured.

Pure: data in, JSON out.

    configured   settings and package, from `omlx.models.pool.speculation_status`
    effective    what is left of that with the drafters that are loaded, and why it differs
    live         the newest answers of the model: gates, acceptance, speed against plain decoding
    costs        milliseconds of passes, by width and context

What is not known (the model is not loaded, nothing is measured yet) is null, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from omlx.engine.speculation.cost_model import FIRST_BUCKET, PLAIN
from omlx.engine.strategy import Strategy
from omlx.engine.types import ModelSnapshot, Reason
from omlx.models.pool.resident import ModelStatus, ServedModel, State
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.models.pool.speculation_status import reason_record, speculation_record
from omlx.records import DrafterStats, PrefixStats, RequestStats, sum_drafters
from omlx.server.dialect import Json
from omlx.server.usage import gate_record

STATES: Final = ("observing", "on", "off")


def speculation(
    configured: SpeculationConfig,
    served: ServedModel | None,
    snapshot: ModelSnapshot | None,
    recent: Sequence[RequestStats],
) -> Json:
    """`served` and `snapshot` are None while the model is not loaded; `recent` are its answers, the newest last."""
    told: Json = speculation_record(configured, served)
    off = snapshot.off if snapshot is not None else served.off if served is not None else None
    if off is not None:
        told["reason"] = reason_record(off)
    return told | {
        "effective": None if snapshot is None else str(effective(configured, snapshot)),
        "drafters": drafters(recent, snapshot),
        "requests": len(recent),
        "speedup": speedup(recent),
        "costs": None if snapshot is None else costs(snapshot.costs),
        "calibration": None if snapshot is None else snapshot.calibration.value,
    }


def effective(configured: SpeculationConfig, snapshot: ModelSnapshot) -> Strategy:
    here = set() if snapshot.off is not None else set(snapshot.drafters.values())
    return configured.strategy.among(here)


def memory(told: ModelStatus) -> Json:
    """Where a model is: `state` is `unloaded`, `loading` (then with `progress`), `ready` or `leaving`."""
    progress = told.progress
    return {
        "loaded": told.state in (State.READY, State.DRAINING),
        "state": told.state.value,
        "progress": None
        if progress is None
        else {"done_bytes": progress.done, "total_bytes": progress.total},
        "weights_bytes": told.weights_bytes,
        "pinned": told.pinned,
        "active": told.active,
        "waiting": told.waiting,
        "idle_s": None if told.idle_s is None else round(told.idle_s, 3),
    }


def batching(unbatchable: Reason | None) -> Json:
    return {
        "batchable": unbatchable is None,
        "reason": None if unbatchable is None else reason_record(unbatchable),
    }


def prefixes(report: PrefixStats) -> Json:
    """What is kept, and what it was good for. A `warning` where everything that was to be kept found no room."""
    told = asdict(report) | {"off": None if report.off is None else reason_record(report.off)}
    warning = stored_none(report)
    return {
        "bytes": told.pop("nbytes"),
        **told,
        "warning": None if warning is None else reason_record(warning),
    }


def stored_none(report: PrefixStats) -> Reason | None:
    """A warning where everything that was to be kept found no room."""
    nothing = report.asked > 0 and report.refused == report.asked
    return (
        Reason("prefix.stored_none", {"asked": report.asked, "limit": report.max_bytes})
        if nothing
        else None
    )


def drafters(recent: Sequence[RequestStats], snapshot: ModelSnapshot | None) -> Json:
    """Each drafter of the loaded model, and those the recent answers had."""
    seen = {name: None for stats in recent for name in (*stats.gates, *stats.drafters)}
    names = dict.fromkeys((*(snapshot.drafters if snapshot is not None else ()), *seen))
    totals = sum_drafters(recent)
    return {name: _drafter(name, recent, totals.get(name, DrafterStats())) for name in names}


def speedup(recent: Sequence[RequestStats]) -> float | None:
    """The middle one of the answers that speculated, against plain decoding as measured beside them."""
    known = [stats.speedup for stats in recent if stats.speedup is not None and stats.proposed]
    return round(median(known), 3) if known else None


def costs(measured: Mapping[str, Any]) -> Json:
    """`CostModel.to_json` as tables for people."""
    return {
        "target": _table(measured["target"]),
        "drafts": {name: _table(rows) for name, rows in measured["drafts"].items()},
    }


def _drafter(name: str, recent: Sequence[RequestStats], total: DrafterStats) -> Json:
    gates = [stats.gates[name] for stats in recent if name in stats.gates]
    counted = Counter(gate.state for gate in gates)
    now = gate_record(gates[-1]) if gates else {"state": None, "reason": None}
    return now | {
        "states": {state: counted[state] for state in STATES},
        "proposed": total.proposed,
        "accepted": total.accepted,
        "rounds": total.rounds,
        "acceptance": _acceptance_by_position(total),
    }


def _acceptance_by_position(stats: DrafterStats) -> list[float] | None:
    """The share of rounds in which the draft was accepted up to each position; None if nothing was drafted."""
    if not stats.rounds:
        return None
    return [round(count / stats.rounds, 4) for count in stats.accepted_at]


def _table(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Medians: `ms[i][j]` is a pass over `widths[i]` rows at a context of up to `contexts[j]` tokens; `plain_ms[j]` the
    interval between plain steps there."""
    buckets = sorted({row["bucket"] for row in rows})
    widths = sorted({row["width"] for row in rows} - {PLAIN})
    known = {
        (row["width"], row["bucket"]): round(1000 * median(row["seconds"]), 3)
        for row in rows
        if row["seconds"]
    }
    return {
        "contexts": [FIRST_BUCKET * 4**bucket for bucket in buckets],
        "widths": widths,
        "ms": [[known.get((width, bucket)) for bucket in buckets] for width in widths],
        "plain_ms": [known.get((PLAIN, bucket)) for bucket in buckets],
    }
