"""The result of a case: figures by trial, ratios within trials, acceptance rates, exactness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final

from lab.bench.console import Json, environment, table
from lab.bench.drive import divergence, request, run
from lab.bench.engine.suites import CaseSamples, EngineCase, EngineSettings, batch_prompts
from lab.bench.series import Series
from lab.bench.subject import Subject
from omlx.engine.types import Request
from omlx.measure.sample import Sample, compare, geometric_mean, total


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
    our_trials = list(map(total, samples.ours))
    their_trials = list(map(total, samples.theirs))
    ours = Series.of(map(case.metric, our_trials))
    theirs = Series.of(map(case.metric, their_trials))
    our_overall = Series.of(map(_overall_rate, our_trials))
    their_overall = Series.of(map(_overall_rate, their_trials))
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


def _overall_rate(sample: Sample) -> float:
    """Return tokens per second with prefill."""
    return sum(map(len, sample.tokens)) / sample.total_s


def summary(results: Sequence[EngineResult]) -> dict[str, dict[str, float]]:
    """Return the geometric mean and the least of the median ratios, by suite and temperature."""
    groups: dict[str, list[float]] = {}
    for result in results:
        name = result.case.suite
        temperature = result.case.params.get("temperature")
        if temperature is not None:
            name += f" T={temperature:g}"
        groups.setdefault(name, []).append(result.ratio.median)
    figures = {}
    for name, ratios in groups.items():
        figures[name] = {"geometric_mean": geometric_mean(ratios), "least": min(ratios)}
    return figures


def equality(subject: Subject, settings: EngineSettings, samples: CaseSamples) -> AnswerEquality:
    """Compare greedy answers with mlx-lm's, sampled ones with the engine's plain decoding."""
    requests = _requests(subject, settings, samples)
    if samples.case.params.get("temperature", 0.0) == 0.0:
        return _compare(subject, "mlx-lm", requests, samples.ours, samples.theirs)
    plain = []
    for trial in requests:
        plain.append([run(subject.loop, [asked]) for asked in trial])
    return _compare(subject, "omlx without speculation", requests, samples.ours, plain)


def _requests(
    subject: Subject, settings: EngineSettings, samples: CaseSamples
) -> list[list[Request]]:
    """Return the plain requests of a case by trial, whose number is the seed."""
    params = samples.case.params
    prompts = subject.prompts[: settings.prompts]
    if samples.case.suite == "batch":
        prompts = batch_prompts(subject, int(params["rows"]))
    build = partial(
        request,
        max_tokens=settings.tokens,
        stop_ids=subject.stop_ids,
        temperature=float(params.get("temperature", 0.0)),
    )
    requests = []
    for seed in range(len(samples.ours)):
        requests.append([build(prompt, seed=seed) for prompt in prompts])
    return requests


def _compare(
    subject: Subject,
    reference: str,
    requests: Sequence[Sequence[Request]],
    ours: Sequence[Sequence[Sample]],
    theirs: Sequence[Sequence[Sample]],
) -> AnswerEquality:
    """All arguments are by trial."""
    answers = []
    for trial, (our_trial, their_trial) in enumerate(zip(ours, theirs, strict=True)):
        pairs = zip(total(our_trial).tokens, total(their_trial).tokens, strict=True)
        for number, (answer, expected) in enumerate(pairs):
            answers.append(((trial, number), answer, expected))
    exactness = compare(answers)
    if exactness.first is None:
        return AnswerEquality(reference, exactness.same, exactness.of)
    trial, number = exactness.first[0]
    expected, answer = total(theirs[trial]).tokens[number], total(ours[trial]).tokens[number]
    found = divergence(subject, requests[trial][number], expected, answer)
    assert found is not None
    first = FirstDifference(number, found.token, found.apart)
    return AnswerEquality(reference, exactness.same, exactness.of, first)


FORMAT: Final = 1
HEAD: Final = (
    "suite",
    "case",
    "against mlx-lm's",
    "omlx",
    "mlx-lm",
    "unit",
    "ratio",
    "min–max",
    "accepted",
    "same answers",
)
LEGEND: Final = """\
ratio: median over trials, above 1.00 omlx is better. Rates count from the first tokens on, without
prefill; host is processor time of the host's thread per step. accepted: of the proposed draft
tokens, omlx / mlx-lm. same answers: at T=0 as mlx-lm, else as omlx without speculation; gap: in
logits, of the first tokens that differ."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """`graphs`: microseconds to build the graph of a pass, by model and width, if measured."""

    settings: Json
    models: Json
    results: Sequence[EngineResult]
    load_before: tuple[float, ...]
    graphs: Mapping[str, Mapping[str, Series]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "format": FORMAT,
            **environment(self.load_before),
            "settings": self.settings,
            "models": self.models,
            "results": [result.to_json() for result in self.results],
            "graph_us": self._graphs_json(),
            "summary": summary(self.results),
        }

    def to_text(self) -> str:
        parts = []
        if self.results:
            parts += [table([HEAD, *map(_row, self.results)]), LEGEND]
        if self.graphs:
            parts.append(table([("graph of", "tokens", "µs", "min–max"), *self._graph_rows()]))
        if self.results:
            rows: list[tuple[str, ...]] = [("summary", "geometric mean", "least", "")]
            for name, figures in summary(self.results).items():
                mean, least = figures["geometric_mean"], figures["least"]
                rows.append((name, f"{mean:.3f}", f"{least:.3f}", ""))
            parts.append(table(rows))
        return "\n\n".join(parts) + "\n"

    def _graph_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for role, widths in self.graphs.items():
            for width, times in widths.items():
                spread = f"{times.least:.0f}–{times.most:.0f}"
                rows.append((role, width, f"{times.median:.0f}", spread))
        return rows

    def _graphs_json(self) -> Json:
        graphs: Json = {}
        for role, widths in self.graphs.items():
            graphs[role] = {width: times.to_json() for width, times in widths.items()}
        return graphs


def one_line(result: EngineResult) -> str:
    """Return the line that is printed as soon as a case ends."""
    suite, name, _, ours, theirs, unit, ratio, spread, *_ = _row(result)
    return f"{suite} {name}: {ours} against {theirs} {unit}, ratio {ratio} ({spread})"


def _row(result: EngineResult) -> tuple[str, ...]:
    accepted = ""
    if result.our_acceptance is not None:
        theirs = "–" if result.their_acceptance is None else f"{result.their_acceptance:.2f}"
        accepted = f"{result.our_acceptance:.2f} / {theirs}"
    return (
        result.case.suite,
        result.case.name,
        result.case.baseline,
        f"{result.ours.median:.1f}",
        f"{result.theirs.median:.1f}",
        result.case.unit,
        f"{result.ratio.median:.3f}",
        f"{result.ratio.least:.3f}–{result.ratio.most:.3f}",
        accepted,
        "" if result.exact is None else str(result.exact),
    )
