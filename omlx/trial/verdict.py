"""From samples to one sentence, and to what one would store. Decides; does not measure.

Lookups need nothing, so a draft model has to be clearly better than they are. `auto` guards itself, so drafting with
the model alone has to be clearly better than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.trial.configurations import PLAIN, TrialConfiguration
from omlx.trial.samples import Gain, Samples, Spread
from omlx.trial.texts import Kind


@dataclass(frozen=True, slots=True)
class Change:
    """How many times as fast one kind of text becomes."""

    kind: Kind
    speedup: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code` is one of `trial.verdict.*`, whose sentence has the fields `draft`, `gains` and `losses`.

    `configuration` is what is recommended; None where nothing is to be changed.
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
    """The verdict on what has been measured of `configurations` (plain decoding among them) with texts of these `kinds`."""
    best: TrialConfiguration | None = None
    for configuration in _simplest_first(samples, configurations):
        if _changes(samples, configuration, kinds, Gain.FASTER) and _better(
            samples, configuration, best
        ):
            best = configuration
    if best is not None:
        gains, losses = (
            _changes(samples, best, kinds, gain) for gain in (Gain.FASTER, Gain.SLOWER)
        )
        but = "_but" if losses else ""
        return Verdict(f"trial.verdict.{best.strategy}{but}", best, gains, losses)
    tried = [configuration for configuration in configurations if configuration != PLAIN]
    lost = [_changes(samples, configuration, kinds, Gain.SLOWER) for configuration in tried]
    if tried and all(lost):
        return Verdict("trial.verdict.off", PLAIN, losses=_least(lost, kinds))
    return Verdict("trial.verdict.none")


def _simplest_first(
    samples: Samples, configurations: Sequence[TrialConfiguration]
) -> list[TrialConfiguration]:
    """Lookups, then `auto`, then draft models alone; of two alike the faster one."""
    rank = {"ngram": 0, "auto": 1, "draft": 2}
    overall = {
        configuration: Spread.of(list(found.values()))
        for configuration in configurations
        if (found := samples.overall(configuration))
    }
    tried = [configuration for configuration in overall if configuration != PLAIN]
    return sorted(
        tried,
        key=lambda configuration: (rank[configuration.strategy], -overall[configuration].median),
    )


def _better(
    samples: Samples, configuration: TrialConfiguration, than: TrialConfiguration | None
) -> bool:
    """Whether it is clearly faster on the whole than what else one would take: at first, plain decoding."""
    ours, theirs = samples.overall(configuration), samples.overall(than or PLAIN)
    ratios = [ours[number] / theirs[number] for number in ours if number in theirs]
    return bool(ratios) and Spread.of(ratios).gain is Gain.FASTER


def _changes(
    samples: Samples, configuration: TrialConfiguration, kinds: Sequence[Kind], gain: Gain
) -> tuple[Change, ...]:
    """What becomes clearly faster, or slower; the largest change first."""
    spreads = [(kind, samples.spread(configuration, kind)) for kind in kinds]
    found = [
        Change(kind, spread.median)
        for kind, spread in spreads
        if spread is not None and spread.gain is gain
    ]
    return tuple(sorted(found, key=lambda change: change.speedup, reverse=gain is Gain.FASTER))


def _least(losses: Sequence[tuple[Change, ...]], kinds: Sequence[Kind]) -> tuple[Change, ...]:
    """Of each kind that something makes slower, the least that is lost."""
    found = {
        kind: [change for changes in losses for change in changes if change.kind is kind]
        for kind in kinds
    }
    return tuple(
        max(changes, key=lambda change: change.speedup) for changes in found.values() if changes
    )
