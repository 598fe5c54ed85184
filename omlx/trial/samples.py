"""The samples of a trial and their figures: rates, speed-ups with their spread, exactness.

A speed-up is the ratio of two answers to the same question in the same visit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan

from omlx.measure.exactness import Exactness, compare
from omlx.measure.sample import Sample, total
from omlx.measure.spread import Gain, Spread, geometric_mean
from omlx.trial.configurations import PLAIN, TrialConfiguration
from omlx.trial.texts import Kind


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer belongs: its round, counted from 0, and the draft resident in its `visit`."""

    number: int
    visit: str | None
    kind: Kind
    configuration: TrialConfiguration

    @property
    def plain(self) -> Place:
        """The place of the plain answer that this one is compared with."""
        return Place(self.number, self.visit, self.kind, PLAIN)


@dataclass(frozen=True, slots=True)
class Samples:
    """Everything measured so far, in order."""

    by_place: dict[Place, Sample] = field(default_factory=dict)

    def add(self, place: Place, sample: Sample) -> None:
        self.by_place[place] = sample

    def rates(self, configuration: TrialConfiguration, kind: Kind) -> list[float]:
        """Return tokens per second by round, as far as they could be measured."""
        rates = (sample.rate for sample in self._of(configuration, kind))
        return [rate for rate in rates if not isnan(rate)]

    def speedups(self, configuration: TrialConfiguration) -> dict[tuple[Kind, int], float]:
        """Return the speed-ups over plain decoding, by kind and round."""
        speedups = {}
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if place.configuration != configuration or plain is None:
                continue
            ratio = sample.rate / plain.rate
            if not isnan(ratio):
                speedups[place.kind, place.number] = ratio
        return speedups

    def spread(self, configuration: TrialConfiguration, kind: Kind) -> Spread | None:
        """Return the spread of the speed-ups with one kind of text, if there are any."""
        speedups = self.speedups(configuration)
        ratios = [speedups[kind, number] for place, number in speedups if place is kind]
        return Spread.of(ratios) if ratios else None

    def overall(self, configuration: TrialConfiguration) -> dict[int, float]:
        """Return the geometric mean of the speed-ups of all measured kinds, by complete round."""
        speedups = self.speedups(configuration)
        kinds = {kind for kind, _ in speedups}
        means = {}
        for number in sorted({number for _, number in speedups}):
            if all((kind, number) in speedups for kind in kinds):
                means[number] = geometric_mean(speedups[kind, number] for kind in kinds)
        return means

    def acceptance_rate(self, configuration: TrialConfiguration, kind: Kind) -> float | None:
        samples = list(self._of(configuration, kind))
        return total(samples).acceptance_rate if samples else None

    def exactness(self) -> Exactness[Place]:
        """Compare every answer with the plain answer to the same question."""
        answers = []
        for place, sample in self.by_place.items():
            plain = self.by_place.get(place.plain)
            if place.configuration != PLAIN and plain is not None:
                answers.append((place, sample.tokens[0], plain.tokens[0]))
        return compare(answers)

    @property
    def draft_errors(self) -> list[str]:
        """The errors that drafters raised, one for each answer."""
        errors = (sample.draft_error for sample in self.by_place.values())
        return [error for error in errors if error is not None]

    def undecided(
        self, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
    ) -> bool:
        """Return whether another round could decide: a difference is notable but not clear."""
        for configuration in configurations:
            if configuration == PLAIN:
                continue
            spreads = (self.spread(configuration, kind) for kind in kinds)
            if any(spread is not None and spread.gain is Gain.UNCLEAR for spread in spreads):
                return True
        return False

    def _of(self, configuration: TrialConfiguration, kind: Kind) -> Iterator[Sample]:
        for place, sample in self.by_place.items():
            if (place.configuration, place.kind) == (configuration, kind):
                yield sample
