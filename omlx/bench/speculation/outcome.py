"""What a case came to: rates and times with their spread, acceptance, and whether the tokens were the same."""

from __future__ import annotations

import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from omlx.bench.exact import parting
from omlx.bench.measure import Run, tokens_per_second
from omlx.bench.result import Json, Samples
from omlx.bench.sides import Driven
from omlx.bench.speculation.oracle import Bound, RoundCosts, allowed, bound
from omlx.bench.speculation.trials import Case, Measured, Trial
from omlx.engine.types import Request
from omlx.records import sum_drafters


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer first differs from plain decoding's. `margin` lies between the two tokens, in logits: near zero,
    rounding decided. Infinite where one answer merely ended earlier."""

    trial: int
    answer: int
    token: int
    margin: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rates in tokens a second, times in seconds with the prompt read. Ratios within trials; above 1 the mode is
    faster. `cold` is the ratio of the first request that the mode ever saw. `errors` are those of both sides, `reasons`
    counts the codes of requests, `gates` by drafter those of its gate, or `on`. `bounds`, if any, are one a trial;
    `allowed` is the gain that their share of copied tokens allows.
    """

    case: Case
    rate: Samples
    plain_rate: Samples
    gain: Samples
    wall: Samples
    plain_wall: Samples
    wall_gain: Samples
    tokens: int
    proposed: int
    accepted: int
    errors: int
    checksum: str
    plain_checksum: str
    divergences: tuple[Divergence, ...]
    cold: float
    reasons: dict[str, int]
    gates: dict[str, dict[str, int]]
    drafters: dict[str, Json]
    bounds: tuple[Bound, ...] = ()
    allowed: float | None = None

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.proposed if self.proposed else None

    @property
    def exact(self) -> bool:
        return self.checksum == self.plain_checksum

    @property
    def bound(self) -> Bound | None:
        """Of all answers together."""
        return sum(self.bounds, Bound()) if self.bounds else None

    @property
    def reached(self) -> Samples | None:
        """The gain as a share of a perfect lookup's with the same answer."""
        if not self.bounds:
            return None
        pairs = zip(self.gain.values, self.bounds, strict=True)
        return Samples(tuple(gain / bound.speedup for gain, bound in pairs))

    @property
    def said(self) -> str:
        """Of the request and of every drafter's gate, what was said most."""
        gates = [f"{name} {_most(codes)}" for name, codes in self.gates.items()]
        return "; ".join([_most(self.reasons), *gates])

    def to_json(self) -> Json:
        perfect: Json | None = None
        if self.bound is not None and self.reached is not None:
            told = {
                "share": self.bound.share,
                "allowed": self.allowed,
                "speedup": self.bound.speedup,
            }
            perfect = asdict(self.bound) | told | {"reached": self.reached.to_json()}
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
            "tokens": self.tokens,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "errors": self.errors,
            "checksum": self.checksum,
            "plain_checksum": self.plain_checksum,
            "divergences": [asdict(each) for each in self.divergences],
            "reasons": self.reasons,
            "gates": self.gates,
            "drafters": self.drafters,
            "perfect_lookup": perfect,
        }


def outcome(measured: Measured, costs: RoundCosts | None) -> Outcome | None:
    """The outcome of a case, or None if no trial could be timed. `costs` for the bound of a perfect lookup."""
    ours = [trial.our_run for trial in measured.trials]
    theirs = [trial.their_run for trial in measured.trials]
    gain = Samples(tuple(map(_gain, ours, theirs)))
    if not gain.known or measured.cold is None:
        return None
    whole = [*measured.trials, measured.cold]
    sides = [driven for trial in whole for driven in trial.ours]
    bounds = () if costs is None else tuple(_bound(trial, costs) for trial in measured.trials)
    return Outcome(
        case=measured.case,
        rate=Samples(tuple(map(tokens_per_second, ours))),
        plain_rate=Samples(tuple(map(tokens_per_second, theirs))),
        gain=gain,
        wall=Samples(tuple(run.total_s for run in ours)),
        plain_wall=Samples(tuple(run.total_s for run in theirs)),
        wall_gain=Samples(tuple(b.total_s / a.total_s for a, b in zip(ours, theirs, strict=True))),
        tokens=sum(len(tokens) for run in ours for tokens in run.tokens),
        proposed=sum(run.proposed for run in ours),
        accepted=sum(run.accepted for run in ours),
        errors=sum(
            len(driven.errors) for trial in whole for driven in (*trial.ours, *trial.theirs)
        ),
        checksum=checksum(tokens for driven in sides for tokens in driven.run.tokens),
        plain_checksum=checksum(
            tokens for trial in whole for side in trial.theirs for tokens in side.run.tokens
        ),
        divergences=tuple(_divergences(measured)),
        cold=_gain(measured.cold.our_run, measured.cold.their_run),
        reasons=dict(
            Counter(told.speculation.code for driven in sides for told in driven.stats.values())
        ),
        gates=_gates(sides),
        drafters=_drafters(sides),
        bounds=bounds,
        allowed=None if costs is None else allowed(sum(bounds, Bound()).share, costs),
    )


def checksum(answers: Iterable[Iterable[int]]) -> str:
    """Of all tokens in order, ends of answers included."""
    value = 0
    for tokens in answers:
        value = zlib.crc32(array("q", [*tokens, -1]).tobytes(), value)
    return f"{value:08x}"


def _gain(ours: Run, theirs: Run) -> float:
    return tokens_per_second(ours) / tokens_per_second(theirs)


def _divergences(measured: Measured) -> Iterator[Divergence]:
    trials = [measured.cold, *measured.trials] if measured.cold else measured.trials
    for number, trial in enumerate(trials):
        for answer, (group, asked, ours, theirs) in enumerate(_answers(trial)):
            if ours == theirs:
                continue
            measured.case.rehearse(group)
            if (found := parting(measured.case.subject, asked, theirs, ours)) is not None:
                yield Divergence(number, answer, found.token, found.apart)


def _answers(
    trial: Trial,
) -> Iterator[tuple[tuple[Request, ...], Request, tuple[int, ...], tuple[int, ...]]]:
    """Of every request: those that ran with it, itself, and its answer on both sides."""
    for group, ours, theirs in zip(trial.asked, trial.ours, trial.theirs, strict=True):
        for answer in zip(group, ours.run.tokens, theirs.run.tokens, strict=True):
            yield group, *answer


def _bound(trial: Trial, costs: RoundCosts) -> Bound:
    """Of what the clock saw of this trial's answers."""
    found = Bound()
    for group, driven, theirs in zip(trial.asked, trial.ours, trial.theirs, strict=True):
        for asked, answer in zip(group, theirs.run.tokens, strict=True):
            given = len(driven.run.tokens[0]) - driven.run.counted
            found += bound(asked.tokens, answer, costs, given)
    return found


def _most(codes: dict[str, int]) -> str:
    return max(codes, key=lambda code: codes[code], default="")


def _gates(sides: Iterable[Driven]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for driven in sides:
        for told in driven.stats.values():
            for name, gate in told.gates.items():
                found.setdefault(name, Counter())[
                    gate.reason.code if gate.reason else gate.state
                ] += 1
    return {name: dict(codes) for name, codes in found.items()}


def _drafters(sides: Iterable[Driven]) -> dict[str, Json]:
    """Counts by drafter, over all requests."""
    answers = [stats for driven in sides for stats in driven.stats.values()]
    return {
        name: {
            "proposed": total.proposed,
            "accepted": total.accepted,
            "rounds": total.rounds,
            "spans": total.spans,
            "repairs": total.repairs,
        }
        for name, total in sum_drafters(answers).items()
    }
