"""What requests used, and what drafts saved of their time: sums that can be added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Final, TypeAlias

from omlx.records import RequestStats

MIN_COMPUTED: Final = 64
"""Prompt tokens that have to be computed to measure the time of one."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over requests. Counts in tokens, times in seconds.

    `measured_n` prompt tokens took `measured_s` to compute, in requests of which most was computed.
    `draft_saved_s` is what drafts saved of the time of decoding, where the speed-up was measured.
    """

    requests: int = 0
    failed: int = 0
    prompt: int = 0
    cached: int = 0
    predicted: int = 0
    accepted: int = 0
    measured_n: int = 0
    measured_s: float = 0.0
    draft_saved_s: float = 0.0

    @classmethod
    def of(cls, stats: RequestStats) -> Usage:
        """Return the usage of a request that was generated, to its end or not."""
        computed, measured_n, measured_s, saved_s = stats.prompt_n - stats.cached_n, 0, 0.0, 0.0
        if computed >= max(MIN_COMPUTED, stats.cached_n):
            measured_n, measured_s = computed, stats.prompt_ms / 1000
        if stats.proposed and stats.speedup is not None:
            saved_s = stats.predicted_ms / 1000 * (stats.speedup - 1)
        return cls(
            requests=1,
            prompt=stats.prompt_n,
            cached=stats.cached_n,
            predicted=stats.predicted_n,
            accepted=stats.accepted,
            measured_n=measured_n,
            measured_s=measured_s,
            draft_saved_s=saved_s,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(sum, zip(astuple(self), astuple(other), strict=True)))


FAILURE: Final = Usage(requests=1, failed=1)

Sums: TypeAlias = Mapping[tuple[str, str, str], Usage]
"""Usage by day (`2026-03-14`), model and name of the API key."""
