"""The result of a case: figures by trial, ratios within trials, acceptance rates, exactness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from omlx.bench.divergence import divergence
from omlx.bench.drive import request, run
from omlx.bench.engine.cases import CaseSamples, EngineCase
from omlx.bench.engine.suites import EngineSettings, batch_prompts
from omlx.bench.report import Json
from omlx.bench.subject import Subject
from omlx.engine.types import Request
from omlx.measure.exactness import compare
from omlx.measure.sample import Sample, total
from omlx.measure.spread import Series, geometric_mean


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first token that differs, by answer and place; `gap` in logits between the two tokens."""

    answer: int
    token: int
    gap: float


@dataclass(frozen=True, slots=True)
class AnswerEquality:
    """`same` of `of` answers were equal, token by token, to those of `reference`."""

    reference: str
    same: int
    of: int
    first: FirstDifference | None = None

    def __str__(self) -> str:
        counts = f"{self.same}/{self.of}"
        if self.first is None:
            return counts
        return f"{counts}, gap {self.first.gap:.0e} at {self.first.answer}:{self.first.token}"


@dataclass(frozen=True, slots=True)
class EngineResult:
    """`ratio` is above 1 where omlx is better; `total_ratio` counts the prefill."""

    case: EngineCase
    ours: Series
    theirs: Series
    ratio: Series
    total_ratio: Series
    our_acceptance: float | None
    their_acceptance: float | None
    exact: AnswerEquality | None = None

    def to_json(self) -> Json:
        case = self.case
        return {
            "suite": case.suite,
            "name": case.name,
            "params": dict(case.params),
            "unit": case.unit,
            "baseline": case.baseline,
            "omlx": self.ours.to_json(),
            "mlx_lm": self.theirs.to_json(),
            "ratio": self.ratio.to_json(),
            "ratio_with_prefill": self.total_ratio.to_json(),
            "acceptance": {"omlx": self.our_acceptance, "mlx_lm": self.their_acceptance},
            "exact": None if self.exact is None else asdict(self.exact),
        }


def result_of(samples: CaseSamples, exact: AnswerEquality | None = None) -> EngineResult:
    """Return the figures of a case's samples."""
    case = samples.case
    our_trials = [total(trial) for trial in samples.ours]
    their_trials = [total(trial) for trial in samples.theirs]
    ours = Series(tuple(map(case.metric, our_trials)))
    theirs = Series(tuple(map(case.metric, their_trials)))
    our_overall = Series(tuple(sample.overall_rate for sample in our_trials))
    their_overall = Series(tuple(sample.overall_rate for sample in their_trials))
    return EngineResult(
        case=case,
        ours=ours,
        theirs=theirs,
        ratio=theirs.over(ours) if case.smaller_is_better else ours.over(theirs),
        total_ratio=our_overall.over(their_overall),
        our_acceptance=total(our_trials).acceptance_rate,
        their_acceptance=total(their_trials).acceptance_rate,
        exact=exact,
    )


def summary(results: Sequence[EngineResult]) -> dict[str, Mapping[str, float]]:
    """Return the geometric mean and the least of the median ratios, by suite and temperature."""
    groups: dict[str, list[float]] = {}
    for result in results:
        name = result.case.suite
        temperature = result.case.params.get("temperature")
        if temperature is not None:
            name += f" T={temperature:g}"
        groups.setdefault(name, []).append(result.ratio.median)
    return {
        name: {"geometric_mean": geometric_mean(ratios), "least": min(ratios)}
        for name, ratios in groups.items()
    }


def equality(subject: Subject, settings: EngineSettings, samples: CaseSamples) -> AnswerEquality:
    """Compare greedy answers with mlx-lm's, sampled ones with the engine's plain decoding."""
    case = samples.case
    prompts = subject.prompts[: settings.prompts]
    if case.suite == "batch":
        prompts = batch_prompts(subject, int(case.params["rows"]))
    temperature = float(case.params.get("temperature", 0.0))
    reference, references = "mlx-lm", samples.theirs
    requests = []
    for seed in range(len(samples.ours)):
        requests.append(_requests(subject, prompts, settings.tokens, temperature, seed))
    if temperature > 0.0:
        reference = "omlx without speculation"
        references = tuple(
            tuple(run(subject.loop, [single]) for single in trial) for trial in requests
        )
    return _compare(subject, reference, requests, samples.ours, references)


def _requests(
    subject: Subject, prompts: Sequence[tuple[int, ...]], tokens: int, temperature: float, seed: int
) -> list[Request]:
    stop_ids = subject.stop_ids
    return [
        request(prompt, tokens, stop_ids=stop_ids, temperature=temperature, seed=seed)
        for prompt in prompts
    ]


def _compare(
    subject: Subject,
    reference: str,
    requests: Sequence[Sequence[Request]],
    ours: Sequence[Sequence[Sample]],
    theirs: Sequence[Sequence[Sample]],
) -> AnswerEquality:
    """All arguments are by trial."""
    places = []
    for trial, (our_trial, their_trial) in enumerate(zip(ours, theirs, strict=True)):
        answers = zip(total(our_trial).tokens, total(their_trial).tokens, strict=True)
        places += [((trial, i), answer, other) for i, (answer, other) in enumerate(answers)]
    exactness = compare(places)
    if exactness.first is None:
        return AnswerEquality(reference, exactness.same, exactness.of)
    trial, number = exactness.first.place
    found = divergence(
        subject,
        requests[trial][number],
        total(theirs[trial]).tokens[number],
        total(ours[trial]).tokens[number],
    )
    assert found is not None
    first = FirstDifference(number, found.token, found.apart)
    return AnswerEquality(reference, exactness.same, exactness.of, first)
