"""Comparisons of outcomes: `auto` with the best fixed draft length, and a length to declare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from omlx.bench.report import Json
from omlx.bench.speculation.modes import AUTO, OFF
from omlx.bench.speculation.outcome import Outcome
from omlx.measure.spread import Series, geometric_mean

MODEL: Final = "model"
"""The role of the measured model in reports."""

AS_GOOD: Final = 0.97
"""Share of the best mean speed-up from which on a draft length counts as equally good."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two speed-ups over plain decoding: their medians, and that of their ratio within trials."""

    model: str
    workload: str
    mode: str
    gain: float
    against: str
    other_gain: float
    ratio: float

    @classmethod
    def of(cls, outcome: Outcome, against: str, other: Series) -> Comparison:
        """Compare over the trials that both finished, which asked the same questions."""
        return cls(
            model=outcome.case.role,
            workload=outcome.case.workload.name,
            mode=outcome.case.mode.name,
            gain=outcome.gain.median,
            against=against,
            other_gain=other.median,
            ratio=outcome.gain.over(other).median,
        )

    @property
    def cells(self) -> tuple[str, ...]:
        gains = (f"{self.gain:.2f}", self.against, f"{self.other_gain:.2f}", f"{self.ratio:.2f}")
        return (self.model, self.workload, self.mode, *gains)

    def to_json(self) -> Json:
        return asdict(self)


def auto_against_fixed(outcomes: Sequence[Outcome]) -> Iterator[Comparison]:
    """Compare single streams of `auto` with the best fixed draft length, 0 among them."""
    for auto in outcomes:
        if auto.case.mode.name != AUTO or auto.case.streams > 1:
            continue
        gains = {}
        for outcome in outcomes:
            if _same_work(outcome, auto) and outcome.case.mode.draft_length is not None:
                gains[outcome.case.mode.name] = outcome.gain
        if gains:
            gains[OFF] = Series((1.0,) * len(auto.gain.values))
            best = max(gains, key=lambda name: gains[name].median)
            yield Comparison.of(auto, best, gains[best])


def declared_draft_length(outcomes: Sequence[Outcome]) -> Json | None:
    """Return the draft length that a model package should declare, or None if there is none.

    The best fixed length over the workloads that all lengths were measured with, bounded by the
    lengths that are nearly as good.
    """
    gains: dict[int, dict[str, float]] = {}
    for outcome in outcomes:
        case = outcome.case
        length, workload = case.mode.draft_length, case.workload
        single = (case.role, case.streams) == (MODEL, 1)
        if length is not None and single and not workload.random_draft:
            gains.setdefault(length, {})[workload.name] = outcome.gain.median
    shared: set[str] = set.intersection(*map(set, gains.values())) if gains else set()
    if not shared:
        return None
    means = {}
    for length, by_workload in gains.items():
        means[length] = geometric_mean(by_workload[name] for name in sorted(shared))
    best = max(means, key=lambda length: means[length])
    good = [length for length, mean in means.items() if mean >= AS_GOOD * means[best]]
    return {
        "default": "adaptive",
        "initial_window": best,
        "min_window": min(good),
        "max_window": max(good),
    }


def _same_work(one: Outcome, other: Outcome) -> bool:
    a, b = one.case, other.case
    return (a.role, a.workload.name, a.streams) == (b.role, b.workload.name, b.streams)
