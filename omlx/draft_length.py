"""Draft length: tokens that a drafter may propose in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Final, NamedTuple

MAX_DRAFT_LENGTH: Final = 64
"""Tokens — the width of the widest verification pass that calibration measures."""

SETTINGS: Final = {
    "min": "draft_min",
    "initial": "draft_initial",
    "fixed": "num_draft_tokens",
    "max": "draft_max",
}
"""Names of the bounds in settings and requests, from the smallest bound to the largest."""


class Contradiction(NamedTuple):
    """Contradicting bounds: `low` (`smaller` tokens) exceeds `high` (`larger` tokens)."""

    low: str
    smaller: int
    high: str
    larger: int


@dataclass(frozen=True, slots=True)
class DraftLength:
    """Bounds of the draft length, in tokens; 0 leaves a bound open."""

    min: int = 0
    initial: int = 0  # bound of a request's first drafts
    max: int = 0
    # Exact draft length at any cost, 0 for no drafts; None lets the policy skip drafting, even if
    # `min` equals `max`.
    fixed: int | None = None

    @classmethod
    def exactly(cls, tokens: int) -> DraftLength:
        return cls(tokens, tokens, tokens, fixed=tokens)

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> DraftLength:
        """Parse settings, or the fields of a request. An absent bound, or None, is open."""
        bounds = {field: values.get(name) for field, name in SETTINGS.items()}
        return cls(**{field: value for field, value in bounds.items() if isinstance(value, int)})

    @classmethod
    def merge(cls, *sources: DraftLength) -> DraftLength:
        """Return closed bounds from several sources, in order of precedence.

        Bounds of a later source hold as far as earlier ones leave room. The defaults come last.
        """
        merged = reduce(cls.over, (*sources, DEFAULT_DRAFT_LENGTH))
        if merged.fixed is not None:
            return cls.exactly(merged.fixed)
        return replace(merged, initial=min(max(merged.initial, merged.min), merged.max))

    def over(self, later: DraftLength) -> DraftLength:
        """Fill open bounds from `later`, as far as the closed bounds leave room."""
        if self.fixed is not None:
            return self
        longest = self.max or MAX_DRAFT_LENGTH
        if later.fixed is not None:
            return DraftLength.exactly(min(max(later.fixed, self.min), longest))
        low = self.min or min(later.min, longest)
        high = self.max
        if not high and later.max:
            high = max(later.max, low)
        return DraftLength(low, self.initial or later.initial, high)

    @property
    def values(self) -> dict[str, int]:
        """Closed bounds by setting name, from the smallest to the largest."""
        bounds = {field: getattr(self, field) or None for field in SETTINGS} | {"fixed": self.fixed}
        return {SETTINGS[field]: tokens for field, tokens in bounds.items() if tokens is not None}

    @property
    def contradiction(self) -> Contradiction | None:
        """First pair of bounds in the wrong order, or None."""
        for (low, smaller), (high, larger) in combinations(self.values.items(), 2):
            overruled = {low, high} == {SETTINGS["initial"], SETTINGS["fixed"]}
            if smaller > larger and not overruled:
                return Contradiction(low, smaller, high, larger)
        return None


ANY_DRAFT_LENGTH: Final = DraftLength()

DEFAULT_DRAFT_LENGTH: Final = DraftLength(1, 16, MAX_DRAFT_LENGTH)
"""Tokens — drafts start with at most 16; the policy then decides within the whole range."""
