"""What a case came to: figures by trial, ratios within trials, acceptance, and whether the tokens were the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from math import exp, isnan, log, nan
from typing import TypeAlias

from omlx.bench.measure import Case, Measured, Run, total

Json: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure a trial; NaN where a trial has none, which then counts for nothing."""

    values: tuple[float, ...]

    @property
    def known(self) -> tuple[float, ...]:
        return tuple(value for value in self.values if not isnan(value))

    @property
    def median(self) -> float:
        return statistics.median(self.known) if self.known else nan

    @property
    def least(self) -> float:
        return min(self.known, default=nan)

    @property
    def most(self) -> float:
        return max(self.known, default=nan)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.known) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.known, n=4, method="inclusive")
        return low, high

    def to_json(self) -> Json:
        low, high = self.quartiles
        spread = {"min": self.least, "q1": low, "median": self.median, "q3": high, "max": self.most}
        return {**spread, "samples": list(self.values)}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that differs, by answer and place. `gap` lies between the two, in logits."""

    answer: int
    token: int
    gap: float


@dataclass(frozen=True, slots=True)
class Exactness:
    """`same` of `of` answers were equal, token by token, to what `reference` said."""

    reference: str
    same: int
    of: int
    first: Difference | None = None

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.same}/{self.of}"
        return f"{self.same}/{self.of}, gap {self.first.gap:.0e} at {self.first.answer}:{self.first.token}"


@dataclass(frozen=True, slots=True)
class Result:
    """`ratio` is above 1 where we are better. Acceptance is accepted of proposed tokens, None where none were."""

    case: Case
    ours: Samples
    theirs: Samples
    ratio: Samples
    total_ratio: Samples
    our_acceptance: float | None
    their_acceptance: float | None
    exact: Exactness | None = None

    def to_json(self) -> Json:
        case = self.case
        named = {
            "suite": case.suite,
            "name": case.name,
            "params": dict(case.params),
            "unit": case.unit,
        }
        return {
            **named,
            "baseline": case.baseline,
            "omlx": self.ours.to_json(),
            "mlx_lm": self.theirs.to_json(),
            "ratio": self.ratio.to_json(),
            "ratio_with_prefill": self.total_ratio.to_json(),
            "acceptance": {"omlx": self.our_acceptance, "mlx_lm": self.their_acceptance},
            "exact": None if self.exact is None else asdict(self.exact),
        }


def result_of(measured: Measured, exact: Exactness | None = None) -> Result:
    case = measured.case
    ours, theirs = (
        [total(runs) for runs in measured.ours],
        [total(runs) for runs in measured.theirs],
    )
    a, b = tuple(map(case.metric, ours)), tuple(map(case.metric, theirs))
    return Result(
        case=case,
        ours=Samples(a),
        theirs=Samples(b),
        ratio=Samples(_ratios(b, a) if case.smaller_is_better else _ratios(a, b)),
        total_ratio=Samples(
            _ratios([_overall(run) for run in ours], [_overall(run) for run in theirs])
        ),
        our_acceptance=_acceptance(ours),
        their_acceptance=_acceptance(theirs),
        exact=exact,
    )


def geometric_mean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def summary(results: Seq[Result]) -> dict[str, Mapping[str, float]]:
    """For each suite (speculation: each temperature) the geometric mean and the least of the median ratios."""
    groups: dict[str, list[float]] = {}
    for result in results:
        temperature = result.case.params.get("temperature")
        name = (
            result.case.suite if temperature is None else f"{result.case.suite} T={temperature:g}"
        )
        groups.setdefault(name, []).append(result.ratio.median)
    return {
        name: {"geometric_mean": geometric_mean(r), "least": min(r)} for name, r in groups.items()
    }


def _overall(run: Run) -> float:
    """Tokens per second with the prefill counted in."""
    return sum(map(len, run.tokens)) / run.total_s


def _ratios(over: Iterable[float], under: Iterable[float]) -> tuple[float, ...]:
    return tuple(x / y if y else nan for x, y in zip(over, under, strict=True))


def _acceptance(runs: Iterable[Run]) -> float | None:
    whole = total(runs)
    return whole.accepted / whole.proposed if whole.proposed else None
