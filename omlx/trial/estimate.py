"""The estimated duration and memory of a trial, before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.trial.configurations import MAX_ROUNDS, MIN_ROUNDS, WARM_UP_TOKENS, visits

WEIGHT_BANDWIDTH: Final = {"gpu": 80e9, "cpu": 8e9}
"""Bytes of weights per second that decoding reads where nothing is measured: modest machines."""

MAX_RATE: Final = 120.0
"""Upper bound of an assumed rate, tokens per second: small models wait for more than weights."""

DISK_BANDWIDTH: Final = 1e9
"""Bytes of weights per second that loading reads."""

PROMPT_TOKENS: Final = 250
PREFILL_SPEEDUP: Final = 8
"""Prefill rate as a multiple of the decode rate."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model takes in memory, in bytes, and whether it is resident."""

    size_bytes: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds with the fewest and the most rounds; `guessed` if no rate has been measured.

    `memory_bytes` come on top of what is resident; `limit_bytes` bounds all models together, 0 for
    no limit.
    """

    least_s: float
    most_s: float
    guessed: bool
    memory_bytes: int
    limit_bytes: int
    fits: bool


def estimate(
    *,
    drafts: Sequence[str],
    kinds: int,
    tokens: int,
    target: Weights,
    weights: Sequence[Weights],
    rate: float | None,
    device: str,
    limit_bytes: int,
    prompt_tokens: int = PROMPT_TOKENS,
) -> Estimate:
    """Estimate a trial of `drafts`, whose `weights` come in the same order.

    `tokens` bounds an answer; `rate` is the measured plain decode rate in tokens per second, if
    any; `device` is cpu or gpu.
    """
    decode_rate = rate or guessed_rate(target.size_bytes, device)
    answer_s = (tokens + prompt_tokens / PREFILL_SPEEDUP) / decode_rate
    warm_up_s = (WARM_UP_TOKENS + prompt_tokens / PREFILL_SPEEDUP) / decode_rate
    answers = sum(len(visit.configurations) for visit in visits(drafts))
    draft_bytes = sorted((draft.size_bytes for draft in weights), reverse=True)
    missing = sorted((draft.size_bytes for draft in weights if not draft.loaded), reverse=True)
    target_bytes = 0 if target.loaded else target.size_bytes
    visit_s = sum(draft_bytes) / DISK_BANDWIDTH + answers * warm_up_s

    def seconds(rounds: int) -> float:
        # One draft is loaded and warmed up once; several take turns in every round.
        visit_count = rounds if len(drafts) > 1 else 1
        measured_s = rounds * answers * kinds * answer_s
        return target_bytes / DISK_BANDWIDTH + measured_s + visit_s * visit_count

    # While one draft replaces another, both are resident: count the two largest.
    return Estimate(
        least_s=seconds(MIN_ROUNDS),
        most_s=seconds(MAX_ROUNDS),
        guessed=rate is None,
        memory_bytes=target_bytes + sum(missing[:2]),
        limit_bytes=limit_bytes,
        fits=not limit_bytes or target.size_bytes + sum(draft_bytes[:2]) <= limit_bytes,
    )


def guessed_rate(size_bytes: int, device: str) -> float:
    """Return the assumed tokens per second of a model of that size."""
    return min(MAX_RATE, WEIGHT_BANDWIDTH[device] / max(1, size_bytes))
