"""From samples to a verdict: what to recommend, and what it changes. Decides; does not measure.

Prompt lookup needs no model, so a draft model has to be clearly faster to be recommended. `auto`
guards itself against a useless draft, so `draft` has to be clearly faster than `auto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.measure.spread import Gain, Spread
from omlx.trial.configurations import PLAIN, TrialConfiguration
from omlx.trial.samples import Samples
from omlx.trial.texts import Kind

SIMPLEST_FIRST: Final = {"ngram": 0, "auto": 1, "draft": 2}
"""Order in which strategies are considered; a later one has to beat the earlier ones."""


@dataclass(frozen=True, slots=True)
class Change:
    """The speed-up of one kind of text."""

    kind: Kind
    spread: Spread

    @property
    def speedup(self) -> float:
        return self.spread.median


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code` is one of `trial.verdict.*`, whose sentence has the fields `draft`, `gains`, `losses`.

    `configuration` is the recommended one; None recommends no change.
    """

    code: str
    configuration: TrialConfiguration | None = None
    gains: tuple[Change, ...] = ()
    losses: tuple[Change, ...] = ()

    @property
    def draft(self) -> str | None:
        return self.configuration.draft if self.configuration is not None else None


def verdict(
    samples: Samples, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
) -> Verdict:
    """Return the verdict on `configurations`, plain decoding among them, with texts of `kinds`."""
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
    if tried and all(lost):
        return Verdict("trial.verdict.off", PLAIN, losses=_smallest_losses(lost, kinds))
    return Verdict("trial.verdict.none")


def _in_order(
    samples: Samples, configurations: Sequence[TrialConfiguration]
) -> list[TrialConfiguration]:
    """Return the measured configurations, simplest first; of two alike the faster one first."""
    ranks = {}
    for configuration in configurations:
        speedups = samples.overall(configuration)
        if configuration != PLAIN and speedups:
            median = Spread.of(list(speedups.values())).median
            ranks[configuration] = (SIMPLEST_FIRST[configuration.strategy], -median)
    return sorted(ranks, key=lambda configuration: ranks[configuration])


def _better(samples: Samples, ours: TrialConfiguration, theirs: TrialConfiguration) -> bool:
    """Return whether one is clearly faster than the other over all kinds of text."""
    our_speedups, their_speedups = samples.overall(ours), samples.overall(theirs)
    rounds = [number for number in our_speedups if number in their_speedups]
    ratios = [our_speedups[number] / their_speedups[number] for number in rounds]
    return bool(ratios) and Spread.of(ratios).gain is Gain.FASTER


def _changes(
    samples: Samples, configuration: TrialConfiguration, kinds: Sequence[Kind], gain: Gain
) -> tuple[Change, ...]:
    """Return the kinds that become clearly faster, or slower; the largest change first."""
    changes = []
    for kind in kinds:
        spread = samples.spread(configuration, kind)
        if spread is not None and spread.gain is gain:
            changes.append(Change(kind, spread))
    return tuple(sorted(changes, key=lambda change: change.speedup, reverse=gain is Gain.FASTER))


def _smallest_losses(
    losses: Sequence[tuple[Change, ...]], kinds: Sequence[Kind]
) -> tuple[Change, ...]:
    """Return, for each kind that some configuration slows down, the smallest loss."""
    smallest: dict[Kind, Change] = {}
    for changes in losses:
        for change in changes:
            known = smallest.get(change.kind)
            if known is None or change.speedup > known.speedup:
                smallest[change.kind] = change
    return tuple(smallest[kind] for kind in kinds if kind in smallest)
