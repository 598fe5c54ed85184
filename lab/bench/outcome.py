"""A case's outcome: rates and times with spread, acceptance, exactness; comparisons."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from lab.bench.cases import AUTO, OFF, CaseTrials, SpeculationCase
from lab.bench.console import Json
from lab.bench.drive import Driven, divergence
from lab.bench.series import Series
from omlx.measure.sample import Sample, geometric_mean, total
from omlx.records import RequestStats, sum_drafters


@dataclass(frozen=True, slots=True)
class AnswerDivergence:
    """First difference of an answer from plain decoding's.

    `margin`: logits between the two tokens; near zero, rounding decided. Infinite if one answer
    merely ended earlier.
    """

    trial: int
    answer: int
    token: int
    margin: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rates in tokens per second, wall times in seconds with prefill; ratios within trials.

    Ratios above 1 mean that the mode is faster; `cold` is the ratio of the mode's first request.
    `sample` sums up the mode's trials. `errors` counts failures of both sides, `reasons` the codes
    of requests, `gates` by drafter the codes or states of its gate. `busy`: other programs took
    more than `BUSY_SHARE` of the processors.
    """

    case: SpeculationCase
    rate: Series
    plain_rate: Series
    gain: Series
    wall: Series
    plain_wall: Series
    wall_gain: Series
    sample: Sample
    errors: int
    checksum: str
    plain_checksum: str
    divergences: tuple[AnswerDivergence, ...]
    cold: float
    reasons: dict[str, int]
    gates: dict[str, dict[str, int]]
    drafters: dict[str, Json]
    busy: bool = False

    @classmethod
    def of(cls, measured: CaseTrials) -> Outcome | None:
        """Return the outcome of a case, or None if no trial could be timed."""
        ours = [trial.our_sample for trial in measured.trials]
        theirs = [trial.their_sample for trial in measured.trials]
        rate = Series.of(sample.rate for sample in ours)
        plain_rate = Series.of(sample.rate for sample in theirs)
        gain = rate.over(plain_rate)
        if not gain.known or measured.cold is None:
            return None
        wall = Series.of(sample.total_s for sample in ours)
        plain_wall = Series.of(sample.total_s for sample in theirs)
        # Reasons and checksums include the first request, rates do not.
        every = (*measured.trials, measured.cold)
        our_groups = [driven for trial in every for driven in trial.ours]
        their_groups = [driven for trial in every for driven in trial.theirs]
        stats = [record for driven in our_groups for record in driven.stats.values()]
        return cls(
            case=measured.case,
            rate=rate,
            plain_rate=plain_rate,
            gain=gain,
            wall=wall,
            plain_wall=plain_wall,
            wall_gain=plain_wall.over(wall),
            sample=total(ours),
            errors=sum(len(driven.errors) for driven in (*our_groups, *their_groups)),
            checksum=_checksum(our_groups),
            plain_checksum=_checksum(their_groups),
            divergences=tuple(_divergences(measured)),
            cold=measured.cold.our_sample.rate / measured.cold.their_sample.rate,
            reasons=dict(Counter(record.speculation.code for record in stats)),
            gates=_gates(stats),
            drafters=_drafters(stats),
            busy=total([*ours, *theirs]).busy,
        )

    @property
    def exact(self) -> bool:
        return self.checksum == self.plain_checksum

    @property
    def commonest_codes(self) -> str:
        """The commonest code of the requests and of every drafter's gate."""
        gates = [f"{name} {_commonest(codes)}" for name, codes in self.gates.items()]
        return "; ".join([_commonest(self.reasons), *gates])

    def to_json(self) -> Json:
        return {
            "model": self.case.role,
            "workload": self.case.workload.name,
            "mode": self.case.mode.name,
            "streams": self.case.streams,
            "tok_s": self.rate.to_json(),
            "plain_tok_s": self.plain_rate.to_json(),
            "gain": self.gain.to_json(),
            "wall_s": self.wall.to_json(),
            "plain_wall_s": self.plain_wall.to_json(),
            "wall_gain": self.wall_gain.to_json(),
            "cold_gain": self.cold,
            "tokens": sum(map(len, self.sample.tokens)),
            "proposed": self.sample.proposed,
            "accepted": self.sample.accepted,
            "errors": self.errors,
            "checksum": self.checksum,
            "plain_checksum": self.plain_checksum,
            "divergences": [asdict(item) for item in self.divergences],
            "reasons": self.reasons,
            "gates": self.gates,
            "drafters": self.drafters,
            "busy": self.busy,
        }


def _checksum(groups: Sequence[Driven]) -> str:
    return checksum(tokens for driven in groups for tokens in driven.sample.tokens)


def checksum(answers: Iterable[Iterable[int]]) -> str:
    """Return the CRC-32 of all tokens in order."""
    value = 0
    for tokens in answers:
        # -1 marks the end of an answer.
        value = zlib.crc32(array("q", [*tokens, -1]).tobytes(), value)
    return f"{value:08x}"


def _divergences(measured: CaseTrials) -> Iterator[AnswerDivergence]:
    case = measured.case
    trials = [measured.cold, *measured.trials] if measured.cold else measured.trials
    for number, trial in enumerate(trials):
        for answer, (group, request, ours, theirs) in enumerate(trial.answers):
            if ours == theirs:
                continue
            case.prepare(group)
            found = divergence(case.subject, request, theirs, ours)
            assert found is not None
            yield AnswerDivergence(number, answer, found.token, found.apart)


def _commonest(codes: dict[str, int]) -> str:
    return max(codes, key=lambda code: codes[code], default="")


def _gates(stats: Iterable[RequestStats]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for record in stats:
        for name, gate in record.gates.items():
            code = gate.reason.code if gate.reason else gate.state
            counts.setdefault(name, Counter())[code] += 1
    return {name: dict(codes) for name, codes in counts.items()}


def _drafters(stats: Iterable[RequestStats]) -> dict[str, Json]:
    counts: dict[str, Json] = {}
    for name, drafter in sum_drafters(stats).items():
        counts[name] = {
            "proposed": drafter.proposed,
            "accepted": drafter.accepted,
            "rounds": drafter.rounds,
            "spans": drafter.spans,
            "repairs": drafter.repairs,
        }
    return counts


MODEL: Final = "model"
"""Role of the measured model in reports."""

HYBRID: Final = "hybrid"
"""Role of a hybrid that recites the model's answers."""

AS_GOOD: Final = 0.97
"""Share of the best mean speed-up — draft lengths above this share count as equally good."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians of two speed-ups over plain decoding, and of their ratio within trials."""

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
    """Compare single streams of `auto` with the best fixed draft length, including 0."""
    for auto in outcomes:
        if auto.case.mode.name != AUTO or auto.case.streams > 1:
            continue
        gains = {}
        for outcome in outcomes:
            if _same_work(outcome, auto) and outcome.case.mode.draft_length is not None:
                gains[outcome.case.mode.name] = outcome.gain
        if gains:
            # Length 0: plain decoding.
            gains[OFF] = Series((1.0,) * len(auto.gain.values))
            best = max(gains, key=lambda name: gains[name].median)
            yield Comparison.of(auto, best, gains[best])


def hybrid_against_twin(outcomes: Sequence[Outcome]) -> Iterator[Comparison]:
    """Compare single streams of the hybrid with those of the attention model."""
    twins = {}
    for outcome in outcomes:
        case = outcome.case
        if (case.role, case.streams) == (MODEL, 1):
            twins[case.workload.name, case.mode.name] = outcome.gain
    for outcome in outcomes:
        case = outcome.case
        twin = twins.get((case.workload.name, case.mode.name))
        if (case.role, case.streams) == (HYBRID, 1) and twin is not None:
            yield Comparison.of(outcome, MODEL, twin)


def declared_draft_length(outcomes: Sequence[Outcome]) -> Json | None:
    """Return the draft length that a model package should declare, if measured.

    The best fixed length over the workloads measured with all lengths, bounded by the lengths that
    are at least `AS_GOOD`.
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
