"""From samples to one sentence, and to what one would store. Decides; does not measure.

Lookups need nothing, so a draft model has to be clearly better than they are. `auto` guards itself, so drafting with
the model alone has to be clearly better than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.trial.configurations import PLAIN, Setup
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

    `setup` is what is recommended; None where nothing is to be changed.
    """

    code: str
    setup: Setup | None = None
    gains: tuple[Change, ...] = ()
    losses: tuple[Change, ...] = ()

    @property
    def draft(self) -> str | None:
        return self.setup.draft if self.setup is not None else None


def verdict(samples: Samples, setups: Sequence[Setup], kinds: Sequence[Kind]) -> Verdict:
    """The verdict on what has been measured of `setups` (plain decoding among them) with texts of these `kinds`."""
    best: Setup | None = None
    for setup in _simplest_first(samples, setups):
        if _changes(samples, setup, kinds, Gain.FASTER) and _better(samples, setup, best):
            best = setup
    if best is not None:
        gains, losses = (
            _changes(samples, best, kinds, gain) for gain in (Gain.FASTER, Gain.SLOWER)
        )
        but = "_but" if losses else ""
        return Verdict(f"trial.verdict.{best.strategy}{but}", best, gains, losses)
    tried = [setup for setup in setups if setup != PLAIN]
    lost = [_changes(samples, setup, kinds, Gain.SLOWER) for setup in tried]
    if tried and all(lost):
        return Verdict("trial.verdict.off", PLAIN, losses=_least(lost, kinds))
    return Verdict("trial.verdict.none")


def _simplest_first(samples: Samples, setups: Sequence[Setup]) -> list[Setup]:
    """Lookups, then `auto`, then draft models alone; of two alike the faster one."""
    rank = {"ngram": 0, "auto": 1, "draft": 2}
    overall = {
        setup: Spread.of(list(found.values()))
        for setup in setups
        if (found := samples.overall(setup))
    }
    tried = [setup for setup in overall if setup != PLAIN]
    return sorted(tried, key=lambda setup: (rank[setup.strategy], -overall[setup].median))


def _better(samples: Samples, setup: Setup, than: Setup | None) -> bool:
    """Whether it is clearly faster on the whole than what else one would take: at first, plain decoding."""
    ours, theirs = samples.overall(setup), samples.overall(than or PLAIN)
    ratios = [ours[number] / theirs[number] for number in ours if number in theirs]
    return bool(ratios) and Spread.of(ratios).gain is Gain.FASTER


def _changes(
    samples: Samples, setup: Setup, kinds: Sequence[Kind], gain: Gain
) -> tuple[Change, ...]:
    """What becomes clearly faster, or slower; the largest change first."""
    spreads = [(kind, samples.spread(setup, kind)) for kind in kinds]
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
