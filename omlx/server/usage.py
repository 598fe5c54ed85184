"""Counts and times of a finished request, as the APIs report them. Pure: finishes in, JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omlx.models.pool.speculation_status import reason_record
from omlx.records import DrafterStats, Gate, RequestStats, sum_drafters
from omlx.text.events import Finish


def usage(finishes: Sequence[Finish], prompts: int = 1) -> dict[str, Any]:
    """OpenAI's usage object. The choices of a prompt share it; it counts once, as do the tokens it found in a cache."""
    stats = [finish.stats for finish in finishes]
    firsts = stats[:: len(stats) // prompts]
    prompt_n = sum(each.prompt_n for each in firsts)
    completion = sum(each.predicted_n for each in stats)
    proposed = sum(each.proposed for each in stats)
    accepted = sum(each.accepted for each in stats)
    return {
        "prompt_tokens": prompt_n,
        "completion_tokens": completion,
        "total_tokens": prompt_n + completion,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_n for each in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(finish.reasoning_tokens for finish in finishes),
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
        "draft_n": sum(each.proposed for each in stats),
        "draft_n_accepted": sum(each.accepted for each in stats),
        "drafters": {
            name: _drafter(drafter) for name, drafter in sorted(sum_drafters(stats).items())
        },
        "seed": first.seed,
        "speculation": _speculation(first),
    }


def _speculation(stats: RequestStats) -> dict[str, Any]:
    """What became of speculation: why, by which strategy, what each drafter's gate was at the end, how fast."""
    return {
        **reason_record(stats.speculation),
        "strategy": stats.strategy,
        "notes": [reason_record(note) for note in stats.strategy_notes],
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


def _drafter(stats: DrafterStats) -> dict[str, Any]:
    return {
        "proposed": stats.proposed,
        "accepted": stats.accepted,
        "rounds": stats.rounds,
        "accepted_at": stats.accepted_at,
        "spans": stats.spans,
        "repairs": stats.repairs,
        "draft_ms": round(stats.draft_ms, 3),
        "verify_ms": round(stats.verify_ms, 3),
    }
