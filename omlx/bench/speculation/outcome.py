"""The outcome of a case: rates and times with their spread, acceptance, and exactness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from omlx.bench.divergence import divergence
from omlx.bench.drive import Driven
from omlx.bench.report import Json
from omlx.bench.speculation.trials import CaseTrials, Group, SpeculationCase, Trial
from omlx.engine.types import Request
from omlx.measure.sample import Sample, checksum, total
from omlx.measure.spread import Series
from omlx.records import RequestStats, sum_drafters


@dataclass(frozen=True, slots=True)
class AnswerDivergence:
    """Where an answer first differs from plain decoding's.

    `margin` lies between the two tokens, in logits: near zero, rounding decided. It is infinite
    where one answer merely ended earlier.
    """

    trial: int
    answer: int
    token: int
    margin: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rates in tokens per second, wall times in seconds with prefill; ratios within trials.

    A ratio above 1 means that the mode is faster; `cold` is that of the mode's first request.
    `sample` sums up our trials; `errors` counts failures of both sides, `reasons` the codes of
    requests, `gates` by drafter those of its gate, or its state.
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
            "perfect_lookup": None,
        }


def outcome(measured: CaseTrials) -> Outcome | None:
    """Return the outcome of a case, or None if no trial could be timed."""
    ours = [trial.our_sample for trial in measured.trials]
    theirs = [trial.their_sample for trial in measured.trials]
    rate, plain_rate = (
        Series.of(sample.rate for sample in ours),
        Series.of(sample.rate for sample in theirs),
    )
    gain = rate.over(plain_rate)
    if not gain.known or measured.cold is None:
        return None
    our_groups: list[Driven] = []
    their_groups: list[Driven] = []
    for trial in (*measured.trials, measured.cold):
        our_groups += trial.ours
        their_groups += trial.theirs
    stats: list[RequestStats] = []
    for driven in our_groups:
        stats += driven.stats.values()
    wall, plain_wall = (
        Series.of(sample.total_s for sample in ours),
        Series.of(sample.total_s for sample in theirs),
    )
    return Outcome(
        case=measured.case,
        rate=rate,
        plain_rate=plain_rate,
        gain=gain,
        wall=wall,
        plain_wall=plain_wall,
        wall_gain=plain_wall.over(wall),
        sample=total(ours),
        errors=sum(len(driven.errors) for driven in (*our_groups, *their_groups)),
        checksum=checksum(_answers(our_groups)),
        plain_checksum=checksum(_answers(their_groups)),
        divergences=tuple(_divergences(measured)),
        cold=measured.cold.our_sample.rate / measured.cold.their_sample.rate,
        reasons=dict(Counter(record.speculation.code for record in stats)),
        gates=_gates(stats),
        drafters=_drafters(stats),
    )


def _answers(groups: Iterable[Driven]) -> Iterator[tuple[int, ...]]:
    for driven in groups:
        yield from driven.sample.tokens


def _divergences(measured: CaseTrials) -> Iterator[AnswerDivergence]:
    case = measured.case
    trials = [measured.cold, *measured.trials] if measured.cold else measured.trials
    for number, trial in enumerate(trials):
        for answer, (group, request, ours, theirs) in enumerate(answers_of(trial)):
            if ours == theirs:
                continue
            case.prepare(group)
            found = divergence(case.subject, request, theirs, ours)
            assert found is not None
            yield AnswerDivergence(number, answer, found.token, found.apart)


def answers_of(trial: Trial) -> Iterator[tuple[Group, Request, tuple[int, ...], tuple[int, ...]]]:
    """Yield every request with its group, and the answers of both sides."""
    for group, ours, theirs in zip(trial.groups, trial.ours, trial.theirs, strict=True):
        answers = zip(group, ours.sample.tokens, theirs.sample.tokens, strict=True)
        for request, our_answer, their_answer in answers:
            yield group, request, our_answer, their_answer


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
    """Return the counts of each drafter over all requests."""
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
