"""What follows from several results: `auto` beside the best window, a hybrid beside its twin, a window to declare."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Final

from omlx.bench.result import Json, Samples, geometric_mean
from omlx.bench.speculation.modes import AUTO, OFF
from omlx.bench.speculation.outcome import Outcome

MODEL: Final = "model"
HYBRID: Final = "hybrid"

AS_GOOD: Final = 0.97
"""Windows whose mean gain is at least this share of the best one's are as good."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two gains over plain decoding, each model's over its own: medians, and that of their ratio within trials."""

    model: str
    workload: str
    mode: str
    gain: float
    against: str
    other_gain: float
    ratio: float

    @property
    def cells(self) -> tuple[str, ...]:
        gains = f"{self.gain:.2f}", f"{self.other_gain:.2f}", f"{self.ratio:.2f}"
        return (self.model, self.workload, self.mode, gains[0], self.against, *gains[1:])

    def to_json(self) -> Json:
        return asdict(self)


def auto_against_fixed(outcomes: Seq[Outcome]) -> Iterator[Comparison]:
    """Where a single stream was measured with `auto` and with fixed windows, of which drafting nothing is one."""
    for auto in outcomes:
        if auto.case.mode.name != AUTO or auto.case.streams > 1:
            continue
        gains = {
            each.case.mode.name: each.gain
            for each in outcomes
            if _alike(each, auto) and each.case.mode.window is not None
        }
        if gains:
            gains[OFF] = Samples((1.0,) * len(auto.gain.values))
            best = max(gains, key=lambda name: gains[name].median)
            yield _compared(auto, best, gains[best])


def hybrid_against_twin(outcomes: Seq[Outcome]) -> Iterator[Comparison]:
    """A single stream of the hybrid beside the same workload and mode of the attention model."""
    twins = {
        (each.case.workload.name, each.case.mode.name): each.gain
        for each in outcomes
        if (each.case.role, each.case.streams) == (MODEL, 1)
    }
    for hybrid in outcomes:
        key = hybrid.case.workload.name, hybrid.case.mode.name
        if (hybrid.case.role, hybrid.case.streams) == (HYBRID, 1) and key in twins:
            yield _compared(hybrid, MODEL, twins[key])


def draft_window(outcomes: Seq[Outcome]) -> Json | None:
    """What a package should say of the draft model: the best fixed window over the workloads that all of them were
    measured with, bounded by those that are nearly as good. None where there is no such workload."""
    gains: dict[int, dict[str, float]] = {}
    for outcome in outcomes:
        case = outcome.case
        if (
            case.mode.window is not None
            and (case.role, case.streams) == (MODEL, 1)
            and not case.workload.random_draft
        ):
            gains.setdefault(case.mode.window, {})[case.workload.name] = outcome.gain.median
    shared = [
        name
        for name in next(iter(gains.values()), {})
        if all(name in found for found in gains.values())
    ]
    if not shared:
        return None
    means = {
        window: geometric_mean(found[name] for name in shared) for window, found in gains.items()
    }
    best = max(means, key=lambda window: means[window])
    good = [window for window, mean in means.items() if mean >= AS_GOOD * means[best]]
    return {
        "default": "adaptive",
        "initial_window": best,
        "min_window": min(good),
        "max_window": max(good),
    }


def _compared(one: Outcome, against: str, other: Samples) -> Comparison:
    """Over the trials that both finished, which asked the same."""
    ratio = Samples(
        tuple(a / b for a, b in zip(one.gain.values, other.values, strict=False))
    ).median
    case = one.case
    return Comparison(
        case.role, case.workload.name, case.mode.name, one.gain.median, against, other.median, ratio
    )


def _alike(one: Outcome, other: Outcome) -> bool:
    a, b = one.case, other.case
    return (a.role, a.workload.name, a.streams) == (b.role, b.workload.name, b.streams)
