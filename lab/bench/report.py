"""Speculation against plain decoding: settings, cases and time limit, and the report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import inf, isnan
from typing import Any, Final

from lab.bench.cases import (
    MODE_NAMES,
    MODES,
    CaseTrials,
    LearnedStates,
    SpeculationCase,
    chosen_modes,
    measure,
)
from lab.bench.console import (
    Json,
    Progress,
    add,
    environment,
    not_negative,
    numbers,
    one_of,
    positive,
    table,
    write_json,
)
from lab.bench.outcome import MODEL, Comparison, Outcome, auto_against_fixed, declared_draft_length
from lab.bench.subject import Subject, read_subject, untrained
from lab.bench.workloads import WORKLOAD_NAMES, WORKLOADS

CONTEXT: Final = 600
"""Tokens — default length of prompt and answer."""


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """`context`: tokens of prompt and answer that workloads aim at.

    `budget`: minutes to measure; None for no limit.
    """

    workloads: tuple[str, ...]
    modes: tuple[str, ...]
    streams: tuple[int, ...]
    trials: int
    context: int
    budget: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_case_arguments(parser, trials=9, context=CONTEXT)
    parser.add_argument(
        "--streams", type=numbers, default=(1, 2, 4), metavar="N,…", help="requests at a time"
    )
    parser.add_argument(
        "--budget", type=not_negative, metavar="MINUTES", help="stop measuring after this long"
    )


def add_case_arguments(parser: argparse.ArgumentParser, *, trials: int, context: int) -> None:
    """Add the flags of models, workloads and modes, with defaults `trials` and `context`."""
    add(parser, "--model", "--draft", "--dtype", "--quantize", "--json")
    for flag, names, default in (
        ("--workloads", WORKLOAD_NAMES, WORKLOAD_NAMES),
        ("--modes", MODE_NAMES, None),
    ):
        text = f"of {','.join(names)}"
        parser.add_argument(flag, type=one_of(names), default=default, metavar="NAME,…", help=text)
    for flag, number, text in (
        ("--trials", trials, "default %(default)s"),
        ("--context", context, "tokens of prompt and answer, about"),
    ):
        parser.add_argument(flag, type=positive, default=number, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the tables. Returns 2 for incompatible models."""
    load_before = os.getloadavg()
    try:
        settings = read_settings(args)
        subject = read_subject(args.model, args.draft, dtype=args.dtype, bits=args.quantize)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    cases = build_cases(subject, untrained(subject.draft), settings)
    measured = run_cases(cases, settings)
    conversions = {"dtype": args.dtype, "quantize": args.quantize}
    report = SpeculationReport(**report_fields({MODEL: subject}, settings, measured, load_before))
    report.settings.update(conversions)
    write_json(args.json, report.to_json())
    sys.stdout.write(report.to_text())
    return 0


def read_settings(args: argparse.Namespace) -> SpeculationSettings:
    """Parse the settings. Raises ValueError if a mode needs a draft model and none is given."""
    modes = chosen_modes(args.modes, draft=args.draft is not None)
    return SpeculationSettings(
        workloads=args.workloads,
        modes=tuple(mode.name for mode in modes),
        streams=args.streams,
        trials=args.trials,
        context=args.context,
        budget=args.budget,
    )


def build_cases(
    subject: Subject, random_draft: Any | None, settings: SpeculationSettings, role: str = MODEL
) -> list[SpeculationCase]:
    """Return a case for each number of streams, workload and mode."""
    states = LearnedStates(subject, random_draft)
    workloads = [workload for workload in WORKLOADS if workload.name in settings.workloads]
    modes = [mode for mode in MODES if mode.name in settings.modes]
    cases = []
    for streams in settings.streams:
        for workload in workloads:
            for mode in modes:
                cases.append(
                    SpeculationCase(
                        role, subject, states, workload, mode, streams, settings.context
                    )
                )
    return cases


def run_cases(
    cases: list[SpeculationCase],
    settings: SpeculationSettings,
    before: Callable[[Progress], None] = lambda progress: None,
) -> list[CaseTrials]:
    """Run `before`, then measure all cases, together within the budget."""
    deadline = None
    if settings.budget is not None:
        deadline = time.monotonic() + 60 * settings.budget
    with Progress(len(cases) * (settings.trials + 1), "pair", deadline) as progress:
        before(progress)
        return measure(cases, settings.trials, progress, deadline)


def report_fields(
    subjects: Mapping[str, Subject],
    settings: SpeculationSettings,
    measured: list[CaseTrials],
    load_before: tuple[float, ...],
) -> dict[str, Any]:
    """Return the fields of a report; `subjects` by role."""
    outcomes, missing = [], []
    for entry in measured:
        result = Outcome.of(entry)
        timed = 0
        if result is not None:
            outcomes.append(result)
            timed = len(result.gain.known)
        if timed < settings.trials:
            missing.append(f"{entry.case.name}: {timed} of {settings.trials} trials")
    return {
        "settings": asdict(settings),
        "models": {role: subject.describe() for role, subject in subjects.items()},
        "outcomes": outcomes,
        "missing": missing,
        "load_before": load_before,
    }


FORMAT: Final = "omlx-bench-spec/1"
EVERYTHING: Final = "All figures"
HEAD: Final = (
    "model",
    "workload",
    "mode",
    "streams",
    "tok/s",
    "wall s",
    "accepted",
    "Δ tok/s",
    "spread",
    "Δ wall",
    "cold",
    "errors",
    "tokens",
    "request and gates, most",
)
COMPARISON_HEAD: Final = (
    "model",
    "workload",
    "mode",
    "speed-up",
    "against",
    "its speed-up",
    "ratio within trials",
)
LEGEND: Final = """\
Δ: change against plain decoding, median over trials of the ratio within each; spread: its least and
greatest value. tok/s: from the first tokens on, until one of several streams ends; wall: with
prefill. cold: the first request that the mode ever saw. tokens: checksum of all answers; = the same
as plain decoding, else the number of answers that differ and the largest margin between the
candidates, in logits. busy: other programs kept the processors so busy that there is no figure."""
BUSY: Final = "busy"
MISSING: Final = "Fewer trials than requested (out of time, or answers too short to be timed)"

TableRows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """`missing`: cases with fewer trials than requested; `title`: heading in a document."""

    settings: Json
    models: Json
    outcomes: Sequence[Outcome]
    missing: Sequence[str]
    load_before: tuple[float, ...]
    title: str = "Measured"

    @property
    def quiet(self) -> list[Outcome]:
        """Outcomes measured on a quiet machine."""
        return [outcome for outcome in self.outcomes if not outcome.busy]

    def to_json(self) -> Json:
        tables = []
        for title, rows in self.tables():
            tables.append({"title": title, "rows": list(map(list, rows))})
        comparisons = auto_against_fixed(self.quiet)
        return {
            "format": FORMAT,
            **environment(self.load_before),
            "title": self.title,
            "settings": self.settings,
            "models": self.models,
            "passes": {},
            "results": [outcome.to_json() for outcome in self.outcomes],
            "auto_against_best_fixed": [comparison.to_json() for comparison in comparisons],
            "hybrid_against_twin": [],
            "draft_window": declared_draft_length(self.quiet),
            "missing": list(self.missing),
            "tables": tables,
            "divergences": list(divergence_lines(self.outcomes)),
        }

    def to_text(self, legend: str = LEGEND) -> str:
        parts = [f"{title}\n\n{table(rows)}" for title, rows in self.tables()]
        if self.outcomes:
            parts.append(legend)
        parts += [f"First difference: {line}" for line in divergence_lines(self.outcomes)]
        if self.missing:
            parts.append(f"{MISSING}: {'; '.join(self.missing)}")
        return "\n\n".join(parts) + "\n"

    def tables(self) -> Iterator[tuple[str, TableRows]]:
        """Yield titles and rows, the head first."""
        if self.outcomes:
            yield EVERYTHING, [HEAD, *map(row, self.outcomes)]
        yield from _overviews(self.outcomes)
        yield from comparison_table(
            "auto against the best fixed draft length", auto_against_fixed(self.quiet)
        )


def row(outcome: Outcome) -> tuple[str, ...]:
    case, accepted = outcome.case, percent(outcome.sample.acceptance_rate)
    figures: tuple[str, ...] = (BUSY, "–", accepted, "–", "–", "–", "–")
    if not outcome.busy:
        figures = (
            f"{outcome.rate.median:.1f}",
            f"{outcome.wall.median:.2f}",
            accepted,
            _change(outcome.gain.median),
            f"×{outcome.gain.least:.2f}–{outcome.gain.most:.2f}",
            _change(1 / outcome.wall_gain.median),
            _change(outcome.cold),
        )
    return (
        case.role,
        case.workload.name,
        case.mode.name,
        str(case.streams),
        *figures,
        str(outcome.errors),
        _tokens(outcome),
        outcome.commonest_codes,
    )


def comparison_table(
    title: str, comparisons: Iterator[Comparison]
) -> Iterator[tuple[str, TableRows]]:
    rows = [comparison.cells for comparison in comparisons]
    if rows:
        yield title, [COMPARISON_HEAD, *rows]


def divergence_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        for found in outcome.divergences:
            place = f"trial {found.trial}, answer {found.answer}, token {found.token}"
            yield f"{outcome.case.name}: {place}, margin {found.margin:.1e}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _overviews(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, TableRows]]:
    """Yield speed-ups by workload and mode: one table per model and number of streams."""
    gains: dict[tuple[str, int], dict[str, dict[str, str]]] = {}
    for outcome in outcomes:
        case = outcome.case
        workloads = gains.setdefault((case.role, case.streams), {})
        by_mode = workloads.setdefault(case.workload.name, {})
        by_mode[case.mode.name] = BUSY if outcome.busy else f"{outcome.gain.median:.2f}"
    for (role, streams), workloads in gains.items():
        modes = list(dict.fromkeys(chain.from_iterable(workloads.values())))
        rows: TableRows = [("workload", *modes)]
        for workload, by_mode in workloads.items():
            rows.append((workload, *(by_mode.get(mode, "") for mode in modes)))
        yield f"Speed-up, {role}, {streams} stream{'s' * (streams > 1)}", rows


def _tokens(outcome: Outcome) -> str:
    if outcome.exact:
        return f"{outcome.checksum} ="
    largest = max((found.margin for found in outcome.divergences), default=inf)
    return f"{outcome.checksum} {len(outcome.divergences)} differ, margin ≤ {largest:.0e}"


def _change(ratio: float) -> str:
    return "–" if isnan(ratio) else f"{100 * (ratio - 1):+.0f} %"
