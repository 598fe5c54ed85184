"""Configurations of a trial, their order, their samples, and the verdict on them.

    visit of a draft   load, warm up with every configuration, then for each kind of text
                       plain  ngram  draft  auto      in one round
                       ngram  draft  auto  plain      in the next, rotated by one

Plain decoding is part of every visit, so both answers of a speed-up are seconds apart. Drafts are
visited in turn within a round, since only one is resident at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isnan
from typing import Any, Final

from omlx.catalog import sentence
from omlx.measure.sample import (
    Comparison,
    Gain,
    Sample,
    Spread,
    compare,
    geometric_mean,
    rotate,
    total,
)
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
        quiet = [
            not (sample.busy or plain.busy)
            for place, sample, plain in self._pairs()
            if (place.configuration, place.kind) == (configuration, kind)
        ]
        return not all(quiet) and sum(quiet) < MIN_QUIET

    def speedups(self, configuration: TrialConfiguration) -> dict[tuple[Kind, int], float]:
        """Return undisturbed speed-ups over plain decoding, by kind and round."""
        ratios = {
            (place.kind, place.number): sample.rate / plain.rate
            for place, sample, plain in self._pairs()
            if place.configuration == configuration and not (sample.busy or plain.busy)
        }
        return {place: ratio for place, ratio in ratios.items() if not isnan(ratio)}

    def spread(self, configuration: TrialConfiguration, kind: Kind) -> Spread | None:
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

    def unsteady(self, configuration: TrialConfiguration, kind: Kind) -> bool:
        """Return whether the machine was busy, or gave figures that a repeat would not confirm."""
        return self.busy(configuration, kind) or self.noise(configuration, kind) is not None

    def acceptance_rate(self, configuration: TrialConfiguration, kind: Kind) -> float | None:
        samples = list(self._of(configuration, kind))
        return total(samples).acceptance_rate if samples else None

    def exactness(self) -> Comparison[Place]:
        """Compare every answer with the plain answer to the same question."""
        return compare(
            (place, sample.tokens[0], plain.tokens[0])
            for place, sample, plain in self._pairs()
            if place.configuration != PLAIN
        )

    def undecided(
        self, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
    ) -> bool:
        """Return whether another round could decide.

        True if a difference is notable but not clear, or if the machine was busy or noisy.
        """
        for configuration, kind in product(configurations, kinds):
            if self.unsteady(configuration, kind):
                return True
            spread = self.spread(configuration, kind)
            if configuration != PLAIN and spread is not None and spread.gain is Gain.UNCLEAR:
                return True
        return False

    def _pairs(self) -> Iterator[tuple[Place, Sample, Sample]]:
        """Yield each sample with the plain sample, perhaps itself, of that round and visit."""
        for place, sample in self.by_place.items():
            if (plain := self.by_place.get(place.plain)) is not None:
                yield place, sample, plain

    def _of(self, configuration: TrialConfiguration, kind: Kind) -> Iterator[Sample]:
        for place, sample in self.by_place.items():
            if (place.configuration, place.kind) == (configuration, kind):
                yield sample


SIMPLEST_FIRST: Final = {"ngram": 0, "auto": 1, "draft": 2}
"""Order of consideration; a later strategy must beat the earlier ones."""

Changes = Mapping[Kind, Spread]
"""Speed-ups by kind of text."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Recommendation and its effects.

    Prompt lookup needs no model, so a draft model must be clearly faster to be recommended. `auto`
    guards against a useless draft, so `draft` must be clearly faster than `auto`.

    `code`: one of `trial.verdict.*`, a sentence with fields `draft`, `gains`, `losses`.

    `configuration`: the recommendation; None recommends no change. `factor`: by which the rounds of
    a noisy trial differ.
    """

    code: str
    configuration: TrialConfiguration | None = None
    gains: Changes = field(default_factory=dict)
    losses: Changes = field(default_factory=dict)
    factor: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the input of `render_verdict`."""
        recommended = self.configuration
        return {
            "code": self.code,
            "draft": None if recommended is None else recommended.draft,
            "gains": _changes_record(self.gains),
            "losses": _changes_record(self.losses),
            "setup": None if recommended is None else recommended.to_json(),
            "factor": self.factor,
        }


def _changes_record(changes: Changes) -> list[dict[str, Any]]:
    records = []
    for kind, spread in changes.items():
        figures = spread.to_json(3)
        speedup = figures.pop("median")
        records.append({"kind": kind.value, "speedup": speedup, **figures})
    return records


def verdict(
    samples: Samples, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
) -> Verdict:
    """Return the verdict on `configurations` (plain decoding included) over `kinds`."""
    if any(samples.busy(each, kind) for each in configurations for kind in kinds):
        return Verdict("trial.verdict.busy")
    noise = [samples.noise(each, kind) for each in configurations for kind in kinds]
    if any(noise):
        return Verdict("trial.verdict.noisy", factor=round(max(filter(None, noise)), 1))
    best: TrialConfiguration | None = None
    for configuration in _in_order(samples, configurations):
        gains = _changes(samples, configuration, kinds, Gain.FASTER)
        if gains and _better(samples, configuration, best or PLAIN):
            best = configuration
    if best is not None:
        gains = _changes(samples, best, kinds, Gain.FASTER)
        losses = _changes(samples, best, kinds, Gain.SLOWER)
        suffix = "_but" if losses else ""
        return Verdict(f"trial.verdict.{best.strategy}{suffix}", best, gains, losses)
    tried = [configuration for configuration in configurations if configuration != PLAIN]
    lost = [_changes(samples, configuration, kinds, Gain.SLOWER) for configuration in tried]
    # Turning speculation off requires a clear loss with every configuration.
    if not tried or not all(lost):
        return Verdict("trial.verdict.none")
    smallest = {}  # losses: even the best configuration is slower
    for kind in kinds:
        if spreads := [changes[kind] for changes in lost if kind in changes]:
            smallest[kind] = max(spreads, key=lambda spread: spread.median)
    return Verdict("trial.verdict.off", PLAIN, losses=smallest)


def _in_order(
    samples: Samples, configurations: Sequence[TrialConfiguration]
) -> list[TrialConfiguration]:
    """Return measured configurations, simplest first; equally simple ones fastest first."""
    ranks = {}
    for configuration in configurations:
        speedups = samples.overall(configuration)
        if configuration != PLAIN and speedups:
            median = Spread.of(list(speedups.values())).median
            ranks[configuration] = (SIMPLEST_FIRST[configuration.strategy], -median)
    return sorted(ranks, key=lambda configuration: ranks[configuration])


def _better(samples: Samples, ours: TrialConfiguration, theirs: TrialConfiguration) -> bool:
    """Return whether `ours` is clearly faster than `theirs` over all kinds of text."""
    our_speedups, their_speedups = samples.overall(ours), samples.overall(theirs)
    rounds = [number for number in our_speedups if number in their_speedups]
    ratios = [our_speedups[number] / their_speedups[number] for number in rounds]
    return bool(ratios) and Spread.of(ratios).gain is Gain.FASTER


def _changes(
    samples: Samples, configuration: TrialConfiguration, kinds: Sequence[Kind], gain: Gain
) -> dict[Kind, Spread]:
    """Return the kinds with a clear `gain`, largest change first."""
    spreads = {kind: samples.spread(configuration, kind) for kind in kinds}
    changes = [(kind, each) for kind, each in spreads.items() if each and each.gain is gain]
    faster = gain is Gain.FASTER
    return dict(sorted(changes, key=lambda change: change[1].median, reverse=faster))


def render_verdict(verdict: Mapping[str, Any], language: str = "en") -> str:
    """Render the sentence of a verdict's record in a cataloged language.

    `{gains}` becomes "code edits 1.8× (1.7–1.9) and prose 1.1× (1.1–1.2)".
    """
    gains = join_list([_change(change, language) for change in verdict["gains"]], language)
    losses = join_list([_change(change, language) for change in verdict["losses"]], language)
    factor = verdict.get("factor")  # older results have none
    params = {"draft": verdict["draft"], "gains": gains, "losses": losses, "factor": factor}
    return sentence(verdict["code"], params, language)


def join_list(parts: Sequence[str], language: str = "en") -> str:
    """Return "a", "a and b", or "a, b and c" in `language`."""
    if len(parts) < 2:
        return "".join(parts)
    first = parts[0]
    for part in parts[1:-1]:
        first = sentence("trial.list.more", {"first": first, "next": part}, language)
    return sentence("trial.list.last", {"first": first, "last": parts[-1]}, language)


def _change(change: Mapping[str, Any], language: str) -> str:
    kind = sentence(f"trial.kind.{change['kind']}", {}, language)
    names = ("speedup", "low", "high")
    params = {name: f"{change[name]:.1f}" for name in names if name in change}
    code = "trial.change"
    if "low" not in change:  # a result that was stored before verdicts had a spread
        code = "trial.change.median"
    return sentence(code, {"kind": kind, **params}, language)
