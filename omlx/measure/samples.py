"""Configurations that a trial compares, their order, and their samples.

    visit of a draft   load it, warm up with every configuration, then for each kind of text
                       plain  ngram  draft  auto      in one round
                       ngram  draft  auto  plain      in the next, rotated by one

Plain decoding is part of every visit, so both answers of a speed-up are seconds apart. Drafts are
visited in turn within a round, since only one is resident at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isnan
from typing import Final

from omlx.measure.sample import Comparison, Sample, compare, total
from omlx.measure.spread import Gain, Spread, geometric_mean, rotate
from omlx.measure.texts import Kind


@dataclass(frozen=True, slots=True)
class TrialConfiguration:
    """A speculation strategy (off, ngram, draft, auto) and its draft model's id, if any."""

    strategy: str
    draft: str | None = None

    @property
    def name(self) -> str:
        return self.strategy if self.draft is None else f"{self.strategy}:{self.draft}"

    @property
    def changes(self) -> dict[str, str | None]:
        """Model settings of this configuration; None leaves a setting to the next source."""
        return {"speculation": self.strategy, "draft_model": self.draft}

    def to_json(self) -> dict[str, str | None]:
        return {"name": self.name, "strategy": self.strategy, "draft": self.draft}


MIN_QUIET: Final = 3
"""Samples — with fewer undisturbed ones, a single busy sample voids the figure."""

PLAIN: Final = TrialConfiguration("off")
NGRAM: Final = TrialConfiguration("ngram")


@dataclass(frozen=True, slots=True)
class Visit:
    """Configurations run while `draft` is resident; None accepts any resident draft."""

    draft: str | None
    configurations: tuple[TrialConfiguration, ...]

    def order(self, kinds: Sequence[Kind], number: int) -> list[tuple[Kind, TrialConfiguration]]:
        """Return the order of round `number`, counted from 0."""
        return list(product(kinds, rotate(self.configurations, number)))


def visits(drafts: Sequence[str]) -> tuple[Visit, ...]:
    """Return the visits of a round. Prompt lookup belongs to the first only."""
    found: list[Visit] = []
    for draft in drafts:
        first = (PLAIN, NGRAM) if not found else (PLAIN,)
        both = (TrialConfiguration("draft", draft), TrialConfiguration("auto", draft))
        found.append(Visit(draft, (*first, *both)))
    return tuple(found) or (Visit(None, (PLAIN, NGRAM)),)


def configurations(drafts: Sequence[str]) -> tuple[TrialConfiguration, ...]:
    """Return the compared configurations, plain decoding first."""
    every = [each for visit in visits(drafts) for each in visit.configurations]
    return tuple(dict.fromkeys(every))


def find_configuration(name: str, drafts: Sequence[str]) -> TrialConfiguration | None:
    """Return the configuration called `name`, or None if a trial of `drafts` has none."""
    return {item.name: item for item in configurations(drafts)}.get(name)


@dataclass(frozen=True, slots=True)
class Place:
    """Position of an answer. `number`: round from 0; `visit`: the resident draft."""

    number: int
    visit: str | None
    kind: Kind
    configuration: TrialConfiguration

    @property
    def plain(self) -> Place:
        """Place of the plain answer in the same round and visit: the reference."""
        return Place(self.number, self.visit, self.kind, PLAIN)


@dataclass(frozen=True, slots=True)
class Samples:
    """All samples so far, in order.

    A speed-up is the ratio of two answers to the same question in the same visit. Samples taken
    while other programs kept the machine busy are ignored.
    """

    by_place: dict[Place, Sample] = field(default_factory=dict)

    def rates(self, configuration: TrialConfiguration, kind: Kind) -> list[float]:
        """Return tokens per second of undisturbed samples, by round."""
        samples = self._of(configuration, kind)
        return [each.rate for each in samples if not isnan(each.rate) and not each.busy]

    def busy(self, configuration: TrialConfiguration, kind: Kind) -> bool:
        """Return whether too few samples (paired with plain ones) were undisturbed."""
        quiet = []
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if (place.configuration, place.kind) == (configuration, kind) and plain is not None:
                quiet.append(not (sample.busy or plain.busy))
        return not all(quiet) and sum(quiet) < MIN_QUIET

    def speedups(self, configuration: TrialConfiguration) -> dict[tuple[Kind, int], float]:
        """Return undisturbed speed-ups over plain decoding, by kind and round."""
        speedups = {}
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if place.configuration != configuration or plain is None:
                continue
            if sample.busy or plain.busy:
                continue
            ratio = sample.rate / plain.rate
            if not isnan(ratio):
                speedups[place.kind, place.number] = ratio
        return speedups

    def spread(self, configuration: TrialConfiguration, kind: Kind) -> Spread | None:
        """Return the spread of the speed-ups with `kind`, if any."""
        speedups = self.speedups(configuration)
        ratios = [speedups[kind, number] for place, number in speedups if place is kind]
        return Spread.of(ratios) if ratios else None

    def overall(self, configuration: TrialConfiguration) -> dict[int, float]:
        """Return the geometric mean over all measured kinds, by complete round."""
        speedups = self.speedups(configuration)
        kinds = {kind for kind, _ in speedups}
        means = {}
        for number in sorted({number for _, number in speedups}):
            # A round without all kinds would shift the mean.
            if all((kind, number) in speedups for kind in kinds):
                means[number] = geometric_mean(speedups[kind, number] for kind in kinds)
        return means

    def noise(self, configuration: TrialConfiguration, kind: Kind) -> float | None:
        """Return the factor by which rounds differ, of `configuration` or plain decoding.

        None if a repeat would agree.
        """
        plain, spread = self.rates(PLAIN, kind), None
        if configuration != PLAIN:
            spread = self.spread(configuration, kind)
        factors = [
            Spread.of(plain).noise(of_speedups=False) if plain else None,
            spread.noise(of_speedups=True) if spread is not None else None,
        ]
        return max(filter(None, factors), default=None)

    def acceptance_rate(self, configuration: TrialConfiguration, kind: Kind) -> float | None:
        samples = list(self._of(configuration, kind))
        return total(samples).acceptance_rate if samples else None

    def exactness(self) -> Comparison[Place]:
        """Compare every answer with the plain answer to the same question."""
        answers = []
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if place.configuration != PLAIN and plain is not None:
                answers.append((place, sample.tokens[0], plain.tokens[0]))
        return compare(answers)

    @property
    def draft_errors(self) -> list[str]:
        """Errors raised by drafters, at most one per answer."""
        errors = (sample.draft_error for sample in self.by_place.values())
        return [error for error in errors if error is not None]

    def undecided(
        self, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
    ) -> bool:
        """Return whether another round could decide.

        True if a difference is notable but not clear, or if the machine was busy or noisy.
        """
        for configuration, kind in product(configurations, kinds):
            if self.busy(configuration, kind) or self.noise(configuration, kind):
                return True
            spread = self.spread(configuration, kind)
            if configuration != PLAIN and spread is not None and spread.gain is Gain.UNCLEAR:
                return True
        return False

    def _of(self, configuration: TrialConfiguration, kind: Kind) -> Iterator[Sample]:
        for place, sample in self.by_place.items():
            if (place.configuration, place.kind) == (configuration, kind):
                yield sample
