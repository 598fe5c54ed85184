"""Cases of interleaved pairs. A pair is the same work on both sides: ours, and mlx-lm's.

trial 1   A B   B A   A B …      one pair after another, in alternating order
trial 2   B A   A B   B A …      a trial's figure is that of the sum over its pairs
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final

from omlx.bench.drive import settle
from omlx.measure.sample import Sample
from omlx.measure.spread import run_pair

WARM_UP: Final = -1
"""Number of the trial before the first, which is not counted."""

Side = Callable[[int], Sample]
"""Does the work once. Takes the trial's number as its seed."""


@dataclass(frozen=True, slots=True)
class EngineCase:
    """`metric`: a trial's figure, from the sum of its samples; `baseline`: what mlx-lm runs."""

    suite: str
    name: str
    baseline: str
    pairs: Sequence[tuple[Side, Side]]
    params: Mapping[str, int | float] = field(default_factory=dict)
    unit: str = "tok/s"
    metric: Callable[[Sample], float] = attrgetter("rate")
    smaller_is_better: bool = False


@dataclass(frozen=True, slots=True)
class CaseSamples:
    """The samples of a case, by trial, then by pair."""

    case: EngineCase
    ours: tuple[tuple[Sample, ...], ...]
    theirs: tuple[tuple[Sample, ...], ...]


def measure(case: EngineCase, trials: int, tick: Callable[[], object]) -> CaseSamples:
    """Run one round of warm-up, then `trials`. Calls `tick` after every pair."""
    ours: list[tuple[Sample, ...]] = []
    theirs: list[tuple[Sample, ...]] = []
    for trial in range(WARM_UP, trials):
        gc.collect()
        samples = []
        for number, (our_side, their_side) in enumerate(case.pairs):
            samples.append(
                run_pair(
                    partial(_run_settled, our_side, trial),
                    partial(_run_settled, their_side, trial),
                    swap=(trial + number) % 2 == 0,
                )
            )
            tick()
        if trial != WARM_UP:
            our_samples, their_samples = zip(*samples, strict=True)
            ours.append(our_samples)
            theirs.append(their_samples)
    return CaseSamples(case, tuple(ours), tuple(theirs))


def _run_settled(side: Side, trial: int) -> Sample:
    settle()
    return side(max(trial, 0))
