"""What the answers of a trial come to: rates, ratios with their spread, and whether the tokens were plain decoding's.

A ratio is taken between two answers to the same question in the same visit. Of three or four ratios the spread reaches
from the least to the greatest; of five the two at the ends do not count, so that one bad moment decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from omlx.trial.configurations import PLAIN, TrialConfiguration
from omlx.trial.texts import Kind

NOTABLE: Final = 1.05
"""A difference that is smaller is none that anybody would notice."""

FORGIVING: Final = 5


class Gain(StrEnum):
    """`UNCLEAR`: there would be one, and the spread covers 1."""

    FASTER = "faster"
    SLOWER = "slower"
    EVEN = "even"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Spread:
    """Of at least one figure."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        inner = sorted(values)[1:-1] if len(values) >= FORGIVING else sorted(values)
        return cls(inner[0], statistics.median(values), inner[-1])

    @property
    def gain(self) -> Gain:
        """What a ratio to plain decoding says."""
        if self.low > 1 and self.median >= NOTABLE:
            return Gain.FASTER
        if self.high < 1 and self.median <= 1 / NOTABLE:
            return Gain.SLOWER
        return Gain.EVEN if 1 / NOTABLE < self.median < NOTABLE else Gain.UNCLEAR


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer belongs: rounds are counted from 0, `visit` is the draft that was in memory."""

    number: int
    visit: str | None
    kind: Kind
    configuration: TrialConfiguration

    @property
    def plain(self) -> Place:
        return Place(self.number, self.visit, self.kind, PLAIN)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: its tokens, the milliseconds from the first to the last one, and drafted tokens."""

    tokens: tuple[int, ...]
    ms: float
    proposed: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float | None:
        """Tokens per second; None where there was nothing to measure."""
        return (
            (len(self.tokens) - 1) / self.ms * 1000
            if len(self.tokens) > 1 and self.ms > 0
            else None
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer first differs from plain decoding's, in tokens from its beginning."""

    kind: Kind
    number: int
    configuration: str
    token: int


@dataclass(frozen=True, slots=True)
class Exactness:
    """`same` of `of` answers were plain decoding's, token by token."""

    same: int
    of: int
    first: Difference | None


@dataclass(frozen=True, slots=True)
class Samples:
    """Everything that has been measured so far, in order."""

    by_place: dict[Place, Sample] = field(default_factory=dict)

    def add(self, place: Place, sample: Sample) -> None:
        self.by_place[place] = sample

    def rates(self, configuration: TrialConfiguration, kind: Kind) -> list[float]:
        found = (
            sample.rate
            for place, sample in self.by_place.items()
            if (place.configuration, place.kind) == (configuration, kind)
        )
        return [rate for rate in found if rate is not None]

    def ratios(self, configuration: TrialConfiguration) -> dict[tuple[Kind, int], float]:
        """By kind and round: how many times as fast as plain decoding."""
        found = {}
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if (
                place.configuration == configuration
                and plain is not None
                and sample.rate
                and plain.rate
            ):
                found[place.kind, place.number] = sample.rate / plain.rate
        return found

    def spread(self, configuration: TrialConfiguration, kind: Kind) -> Spread | None:
        ratios = [ratio for (each, _), ratio in self.ratios(configuration).items() if each is kind]
        return Spread.of(ratios) if ratios else None

    def overall(self, configuration: TrialConfiguration) -> dict[int, float]:
        """By round, over all kinds of text that could be measured: the geometric mean."""
        ratios = self.ratios(configuration)
        kinds, numbers = {kind for kind, _ in ratios}, sorted({number for _, number in ratios})
        whole = [number for number in numbers if all((kind, number) in ratios for kind in kinds)]
        return {
            n: math.exp(statistics.fmean(math.log(ratios[kind, n]) for kind in kinds))
            for n in whole
        }

    def acceptance(self, configuration: TrialConfiguration, kind: Kind) -> float | None:
        """The share of drafted tokens that were right."""
        mine = [
            sample
            for place, sample in self.by_place.items()
            if (place.configuration, place.kind) == (configuration, kind)
        ]
        proposed = sum(sample.proposed for sample in mine)
        return sum(sample.accepted for sample in mine) / proposed if proposed else None

    def exactness(self) -> Exactness:
        same, of, first = 0, 0, None
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if place.configuration == PLAIN or plain is None:
                continue
            of += 1
            at = first_difference(sample.tokens, plain.tokens)
            same += at is None
            if at is not None and first is None:
                first = Difference(place.kind, place.number, place.configuration.name, at)
        return Exactness(same, of, first)

    def undecided(
        self, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
    ) -> bool:
        """Whether another round could tell more: somewhere a difference would be notable, and is not clear."""
        spreads = (
            self.spread(configuration, kind)
            for configuration in configurations
            if configuration != PLAIN
            for kind in kinds
        )
        return any(spread is not None and spread.gain is Gain.UNCLEAR for spread in spreads)


def first_difference(ours: Sequence[int], plain: Sequence[int]) -> int | None:
    """The first place at which two answers differ, an end counting as one; None if they are the same."""
    pairs = zip(ours, plain, strict=False)
    at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
    return min(len(ours), len(plain)) if at is None and len(ours) != len(plain) else at
