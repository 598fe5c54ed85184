"""The bound of prompt lookup in the trials of a case: what its oracle could have gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lab.bench.oracle import Bound, RoundCosts, bound, speedup_at
from omlx.bench.cases import Trial
from omlx.bench.console import Json
from omlx.measure.spread import Series


@dataclass(frozen=True, slots=True)
class LookupBound:
    """The bound of all answers together, and the speed-up as a share of the oracle's, by trial.

    `allowed` is the speed-up at which the oracle's coverage, taken as an acceptance probability,
    would arrive.
    """

    bound: Bound
    reached: Series
    allowed: float

    def to_json(self) -> Json:
        return {
            **asdict(self.bound),
            "share": self.bound.coverage,
            "allowed": self.allowed,
            "speedup": self.bound.speedup,
            "reached": self.reached.to_json(),
        }


def lookup_bound(trials: Sequence[Trial], gain: Series, costs: RoundCosts) -> LookupBound:
    """Return the bound of the timed part of these trials' answers; `gain` by trial."""
    bounds = [_trial_bound(trial, costs) for trial in trials]
    whole = sum(bounds, Bound())
    oracle = Series(tuple(bound.speedup for bound in bounds))
    return LookupBound(whole, gain.over(oracle), speedup_at(whole.coverage, costs))


def _trial_bound(trial: Trial, costs: RoundCosts) -> Bound:
    whole = Bound()
    for group, ours, theirs in zip(trial.groups, trial.ours, trial.theirs, strict=True):
        given = len(ours.sample.tokens[0]) - ours.sample.counted  # before the clock started
        for request, answer in zip(group, theirs.sample.tokens, strict=True):
            whole += bound(request.tokens, answer, costs, given)
    return whole
