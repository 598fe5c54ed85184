"""The status of one model for GET /v1/models/{id}: memory, speculation, batching, prefix cache.

Data in, JSON out. Of speculation: the configured strategy, the effective one (reduced to the loaded
drafters), the newest answers (gates, acceptance rates, speed-up), and the costs of passes in
milliseconds by width and context.

Unknown values (the model is not loaded, nothing is measured yet) are null, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from omlx.engine.speculation.cost_model import FIRST_BUCKET, PLAIN
from omlx.engine.speculation.strategy import Strategy
from omlx.engine.types import ModelSnapshot
from omlx.errors import Reason, optional_reason
from omlx.exactness import ExactnessClaim
from omlx.models.pool.served import (
    ModelStatus,
    ServedModel,
    State,
    speculation_to_json,
)
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import BeginningStats, DrafterStats, PrefixStats, RequestStats, sum_drafters
from omlx.server.http.transport import Json
from omlx.server.request.usage import gate_record
from omlx.settings.schema import STRICT

STATES: Final = ("observing", "on", "off")


def speculation(
    configured: SpeculationConfig,
    served: ServedModel | None,
    snapshot: ModelSnapshot | None,
    recent: Sequence[RequestStats],
) -> Json:
    """`served` and `snapshot` are None while the model is not loaded; `recent`: its answers, the
    newest last."""
    record: Json = speculation_to_json(configured, served)
    off = None if served is None else served.off_reason
    if snapshot is not None:
        off = snapshot.off_reason
    if off is not None:
        record["reason"] = optional_reason(off)
    record |= {"effective": None, "costs": None, "calibration": None}
    if snapshot is not None:
        record["effective"] = str(effective(configured, snapshot))
        record["costs"] = costs(snapshot.costs)
        record["calibration"] = snapshot.calibration.value
    return record | {
        "drafters": drafters(recent, snapshot),
        "requests": len(recent),
        "speedup": speedup(recent),
    }


def effective(configured: SpeculationConfig, snapshot: ModelSnapshot) -> Strategy:
    """The configured strategy, reduced to the kinds of the loaded drafters."""
    if snapshot.off_reason is not None:
        return configured.strategy.among(set())
    return configured.strategy.among(set(snapshot.drafters.values()))


def memory(status: ModelStatus) -> Json:
    """`state` is `unloaded`, `loading` (then with `progress`), `ready` or `leaving` (draining);
    `stages` is empty for a model in one process."""
    progress = None
    if status.progress is not None:
        progress = {"done_bytes": status.progress.done, "total_bytes": status.progress.total}
    return {
        "loaded": status.state in (State.READY, State.DRAINING),
        "state": status.state.value,
        "progress": progress,
        "weights_bytes": status.weights_bytes,
        "pinned": status.pinned,
        "active": status.active,
        "waiting": status.waiting,
        "idle_s": None if status.idle_s is None else round(status.idle_s, 3),
        "stages": [stage.to_json() for stage in status.stages],
    }


def fallbacks(reasons: Iterable[Reason], model: str) -> list[Json]:
    """Names for which a model answered, and why, the newest last."""
    return [reason.to_json() for reason in reasons if reason.params["model"] == model]


def vocabulary(served: ServedModel | None) -> Json | None:
    """Return the number of accepted ids, with a `warning` if the tokenizer has more."""
    if served is None:
        return None
    return {"size": served.vocab_size, "warning": optional_reason(served.narrow)}


def vision(blind: Reason | None, served: ServedModel | None) -> Json:
    """Whether a model reads images, else why not; the memory of its tower is part of its
    weights."""
    tower = None if served is None else served.vision.tower_bytes
    return {"on": blind is None, "reason": optional_reason(blind), "tower_bytes": tower}


def batching(unbatchable: Reason | None) -> Json:
    return {"batchable": unbatchable is None, "reason": optional_reason(unbatchable)}


def kv_cache(served: ServedModel | None) -> Json | None:
    """Bits and bytes of a loaded model's KV cache, and why quantization is off."""
    if served is None:
        return None
    cache = served.kv_cache
    reason = optional_reason(cache.reason)
    return {"bits": cache.bits, "bytes_per_token": cache.token_bytes, "reason": reason}


def exactness(configured: SpeculationConfig, served: ServedModel | None) -> Json:
    """The setting, and what was measured of the loaded model: None before that."""
    if served is not None:
        return served.exactness.to_json()
    return ExactnessClaim(configured.settings.exactness == STRICT, None).to_json()


def prefixes(stats: PrefixStats) -> Json:
    """The prefix cache, with a `warning` if every insertion was refused."""
    record = asdict(stats)
    disk = record.pop("disk")
    return {
        "bytes": record.pop("nbytes"),
        **record,
        "disk": {"bytes": disk.pop("nbytes"), **disk, "off": optional_reason(stats.disk.off)},
        "off": optional_reason(stats.off),
        "warning": optional_reason(stats.warning),
    }


def prewarming(stats: BeginningStats | None) -> Json | None:
    """Return the progress of beginnings, None if none are stored; `paused` says why they wait."""
    if stats is None:
        return None
    record = asdict(stats) | {"budget_left_s": round(stats.budget_left_s, 3)}
    return record | {"paused": optional_reason(stats.paused)}


def drafters(recent: Sequence[RequestStats], snapshot: ModelSnapshot | None) -> Json:
    """By name: drafters of the loaded model, then others that recent answers had."""
    names = dict.fromkeys(() if snapshot is None else snapshot.drafters)
    for stats in recent:
        names |= dict.fromkeys((*stats.gates, *stats.drafters))
    totals = sum_drafters(recent)
    return {name: _drafter(name, recent, totals.get(name, DrafterStats())) for name in names}


def speedup(recent: Sequence[RequestStats]) -> float | None:
    """Return the median steady speed-up of the answers that speculated."""
    known = [stats.steady_speedup for stats in recent if stats.proposed]
    steady = [speedup for speedup in known if speedup is not None]
    return round(median(steady), 3) if steady else None


def costs(measured: Mapping[str, Any]) -> Json:
    """Turn `CostModel.to_json` into latency tables."""
    return {
        "target": _table(measured["target"]),
        "drafts": {name: _table(rows) for name, rows in measured["drafts"].items()},
    }


def _drafter(name: str, recent: Sequence[RequestStats], total: DrafterStats) -> Json:
    gates = [stats.gates[name] for stats in recent if name in stats.gates]
    counts = Counter(gate.state for gate in gates)
    newest = gate_record(gates[-1]) if gates else {"state": None, "reason": None}
    return newest | {
        "states": {state: counts[state] for state in STATES},
        "proposed": total.proposed,
        "accepted": total.accepted,
        "rounds": total.rounds,
        "acceptance": _acceptance_by_position(total),
    }


def _acceptance_by_position(stats: DrafterStats) -> list[float] | None:
    """The share of rounds in which the draft was accepted up to each position; None if nothing
    was drafted."""
    if not stats.rounds:
        return None
    return [round(count / stats.rounds, 4) for count in stats.accepted_at]


def _table(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Median milliseconds:

    `ms[i][j]` of a pass over `widths[i]` rows at a context of up to `contexts[j]` tokens,
    `plain_ms[j]` of the interval between plain decoding steps there.
    """
    buckets = sorted({row["bucket"] for row in rows})
    widths = sorted({row["width"] for row in rows} - {PLAIN})
    measured = {
        (row["width"], row["bucket"]): round(1000 * median(row["seconds"]), 3)
        for row in rows
        if row["seconds"]
    }

    def ms(width: int) -> list[float | None]:
        return [measured.get((width, bucket)) for bucket in buckets]

    return {
        "contexts": [FIRST_BUCKET * 4**bucket for bucket in buckets],
        "widths": widths,
        "ms": [ms(width) for width in widths],
        "plain_ms": ms(PLAIN),
    }
