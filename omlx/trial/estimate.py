"""How long a trial will take and how much memory it wants, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.trial.configurations import MAX_ROUNDS, MIN_ROUNDS, WARM_TOKENS, visits

BYTES_PER_SECOND: Final = {"gpu": 80e9, "cpu": 8e9}
"""How fast weights are read to make a token, where nothing has been measured: modest machines of each kind."""

FASTEST: Final = 120.0
"""Tokens per second that are assumed at most: small models wait for other things than their weights."""

LOADED_PER_SECOND: Final = 1e9
"""Bytes of weights that come from a disk."""

PROMPT_TOKENS: Final = 250
PROMPT_SPEED: Final = 8
"""A prompt is read so many times as fast as an answer is made."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model takes in memory, in bytes, and whether it is there already."""

    size_bytes: int
    loaded: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds with the fewest and with the most rounds; `guessed`: nothing has been measured here yet.

    `memory_bytes` are to be taken beside what is in memory now, `limit_bytes` what all models may take together, 0
    for no limit.
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
    """`weights` are those of the `drafts`, in the same order; `rate` is plain decoding's in tokens per second, if it is
    known; `device` is cpu or gpu."""
    speed = rate or guessed_rate(target.size_bytes, device)
    answer_s = (tokens + prompt_tokens / PROMPT_SPEED) / speed
    warm_s = (WARM_TOKENS + prompt_tokens / PROMPT_SPEED) / speed
    answers = sum(len(visit.configurations) for visit in visits(drafts))
    loading = sum(each.size_bytes for each in weights) / LOADED_PER_SECOND
    # One draft is loaded and warmed up once; several take turns in every round.
    returns = len(drafts) > 1

    def seconds(rounds: int) -> float:
        once = loading + answers * warm_s
        first = 0.0 if target.loaded else target.size_bytes / LOADED_PER_SECOND
        return first + rounds * answers * kinds * answer_s + once * (rounds if returns else 1)

    # While one draft replaces another, both are there.
    two = sum(sorted((each.size_bytes for each in weights if not each.loaded), reverse=True)[:2])
    more = two + (0 if target.loaded else target.size_bytes)
    whole = target.size_bytes + sum(sorted((each.size_bytes for each in weights), reverse=True)[:2])
    return Estimate(
        least_s=seconds(MIN_ROUNDS),
        most_s=seconds(MAX_ROUNDS),
        guessed=rate is None,
        memory_bytes=more,
        limit_bytes=limit_bytes,
        fits=not limit_bytes or whole <= limit_bytes,
    )


def guessed_rate(size_bytes: int, device: str) -> float:
    """Tokens per second of a model of that size, from nothing but that."""
    return min(FASTEST, BYTES_PER_SECOND[device] / max(1, size_bytes))
