"""Counts and times of a finished request, as the APIs report them. Pure: finishes in, JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from omlx.engine.types import DrafterStats, Gate, RequestStats
from omlx.models.pool.speculation_status import reason_record
from omlx.text.events import Finish


def usage(finishes: Sequence[Finish], prompts: int = 1) -> dict[str, Any]:
    """OpenAI's usage object. The choices of a prompt share it; it counts once, as do the tokens it found in a cache."""
    stats = [finish.stats for finish in finishes]
    firsts = stats[:: len(stats) // prompts]
    prompt_n = sum(each.prompt_n for each in firsts)
    completion = sum(each.predicted_n for each in stats)
    proposed = sum(each.draft_n for each in stats)
    accepted = sum(each.draft_n_accepted for each in stats)
    return {
        "prompt_tokens": prompt_n,
        "completion_tokens": completion,
        "total_tokens": prompt_n + completion,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_n for each in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(finish.reasoning_n for finish in finishes),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


def timings(finishes: Sequence[Finish], prompts: int = 1) -> dict[str, Any]:
    """llama-server's `timings`, with what each drafter did. `prompt_n` leaves out the `cache_n` reused tokens.

    Of several choices: tokens and drafters add up, times are those of the slowest, what is said of speculation is the
    first one's. Each prompt counts once.
    """
    stats = [finish.stats for finish in finishes]
    first = stats[0]
    firsts = stats[:: len(stats) // prompts]
    cached_n = sum(each.cached_n for each in firsts)
    prompt_n = sum(each.prompt_n for each in firsts) - cached_n
    prompt_ms = max(each.prompt_ms for each in stats)
    predicted_n = sum(each.predicted_n for each in stats)
    predicted_ms = max(each.predicted_ms for each in stats)
    return {
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_second": per_second(prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_second": per_second(predicted_n, predicted_ms),
        "cache_n": cached_n,
        "draft_n": sum(each.draft_n for each in stats),
        "draft_n_accepted": sum(each.draft_n_accepted for each in stats),
        "drafters": _drafters([each.drafters for each in stats]),
        "seed": first.seed,
        "speculation": _speculation(first),
    }


def _speculation(stats: RequestStats) -> dict[str, Any]:
    """What became of speculation: why, by which strategy, what each drafter's gate was at the end, how fast."""
    return {
        **reason_record(stats.speculation),
        "strategy": str(stats.strategy),
        "notes": [reason_record(note) for note in stats.strategy.notes],
        "gates": {name: gate_record(gate) for name, gate in stats.gates.items()},
        "speedup": None if stats.speedup is None else round(stats.speedup, 3),
    }


def gate_record(gate: Gate) -> dict[str, Any]:
    return {
        "state": gate.state,
        "reason": None if gate.reason is None else reason_record(gate.reason),
    }


def per_second(tokens: int, ms: float) -> float:
    return round(tokens / ms * 1000, 2) if ms > 0 else 0.0


def _drafters(choices: Sequence[dict[str, DrafterStats]]) -> dict[str, Any]:
    names = sorted({name for drafters in choices for name in drafters})
    return {
        name: _drafter([drafters[name] for drafters in choices if name in drafters])
        for name in names
    }


def _drafter(parts: Sequence[DrafterStats]) -> dict[str, Any]:
    return {
        "proposed": sum(part.proposed for part in parts),
        "accepted": sum(part.accepted for part in parts),
        "rounds": sum(part.rounds for part in parts),
        "accepted_at": accepted_at(parts),
        "spans": _added([part.spans for part in parts]),
        "repairs": _added([part.repairs for part in parts]),
        "draft_ms": round(sum(part.draft_ms for part in parts), 3),
        "verify_ms": round(sum(part.verify_ms for part in parts), 3),
    }


def accepted_at(parts: Sequence[DrafterStats]) -> list[int]:
    """By position: in how many rounds the draft was right so far."""
    return [
        sum(counts) for counts in zip_longest(*(part.accepted_at for part in parts), fillvalue=0)
    ]


def _added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {
        key: sum(count.get(key, 0) for count in counts)
        for key in sorted({key for count in counts for key in count})
    }
