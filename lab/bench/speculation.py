"""`python -m lab.bench speculation`: speculation, with upper bounds and hybrids.

It measures what rounds cost, compares prompt lookup with its oracle and a hybrid with its
attention twin, can inflate the models, and draws the speed-ups.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from lab.bench import inflate, plot
from lab.bench import report as command
from lab.bench.cases import CaseTrials, SpeculationCase
from lab.bench.console import Json, Progress, model_dir, numbers, output, write_json
from lab.bench.oracle import LookupBound, lookup_bound
from lab.bench.outcome import MODEL, Comparison, Outcome
from lab.bench.recital import Recital, Reciter
from lab.bench.report import (
    LEGEND,
    SpeculationReport,
    SpeculationSettings,
    TableRows,
    comparison_table,
    percent,
)
from lab.bench.round_costs import REPEATS, WIDTHS, PassCosts, draft_pass_seconds, round_costs
from lab.bench.subject import Subject, read_subject, untrained
from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.speculation.drafters.ngram import NgramDrafter

HYBRID: Final = "hybrid"
"""The role of the hybrid in reports."""

BOUND_HEAD: Final = (
    "model",
    "workload",
    "mode",
    "coverage",
    "oracle",
    "reached",
    "coverage alone",
    "reached",
)
PASS_HEAD: Final = (
    "draft length",
    "round / plain step",
    "prompt lookup",
    "draft model",
)
FULL_LEGEND: Final = f"""\
{LEGEND} Oracle: it knows where and how far to copy; reached: the speed-up as a share of its own (a
draft model can exceed it). Coverage alone: the best draft length if as many tokens are proposed
correctly but rejections fall anywhere (streams 1). Break-even –: no acceptance rate would do."""


@dataclass(frozen=True, slots=True)
class FullReport(SpeculationReport):
    """`passes` by role; `bounds` by the outcome's case name, for single streams."""

    passes: Mapping[str, PassCosts] = field(default_factory=dict)
    bounds: Mapping[str, LookupBound] = field(default_factory=dict)

    def to_json(self) -> Json:
        report = SpeculationReport.to_json(self)
        results = []
        for outcome in self.outcomes:
            result = outcome.to_json()
            if outcome.case.name in self.bounds:
                result["perfect_lookup"] = self.bounds[outcome.case.name].to_json()
            results.append(result)
        comparisons = hybrid_against_twin(self.outcomes)
        report["passes"] = {role: passes.to_json() for role, passes in self.passes.items()}
        report["results"] = results
        report["hybrid_against_twin"] = [comparison.to_json() for comparison in comparisons]
        return report

    def tables(self) -> Iterator[tuple[str, TableRows]]:
        tables = list(SpeculationReport.tables(self))
        bounds = list(self._bound_rows())
        if bounds:
            place = sum(not title.startswith("auto against") for title, _ in tables)
            tables.insert(place, ("Upper bound of prompt lookup", [BOUND_HEAD, *bounds]))
        yield from tables
        yield from comparison_table(
            "The hybrid against its attention twin, both writing the twin's answers",
            hybrid_against_twin(self.outcomes),
        )
        for role, passes in self.passes.items():
            yield f"Break-even acceptance rate by draft length ({role})", _pass_rows(passes)

    def _bound_rows(self) -> Iterator[tuple[str, ...]]:
        for outcome in self.outcomes:
            bound = self.bounds.get(outcome.case.name)
            if bound is None or NgramDrafter.kind not in outcome.drafters:
                continue
            case = outcome.case
            yield (
                case.role,
                case.workload.name,
                case.mode.name,
                percent(bound.bound.coverage),
                f"{bound.bound.speedup:.2f}",
                percent(bound.reached.median),
                f"{bound.allowed:.2f}",
                percent(outcome.gain.median / bound.allowed),
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    command.add_arguments(parser)
    parser.add_argument(
        "--hybrid",
        type=model_dir,
        metavar="DIR",
        help="to hold against --model: recites its answers, same draft",
    )
    parser.add_argument(
        "--widths",
        type=_widths,
        default=WIDTHS,
        metavar="N,…",
        help="passes to measure the cost of",
    )
    parser.add_argument(
        "--title", default="Measured", metavar="TEXT", help="heads the report in a page"
    )
    inflate.add_arguments(parser)
    parser.add_argument("--plot", type=output, metavar="FILE", help="write the speed-ups as SVG")


def run(args: argparse.Namespace) -> int:
    """Measure, write the files, print the tables. Returns 2 if the models do not fit together."""
    load_before = os.getloadavg()
    try:
        settings = command.read_settings(args)
        subjects = {MODEL: _read(args.model, args)}
        if args.hybrid:
            subjects[HYBRID] = _read(args.hybrid, args)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    vocabulary, *others = (subject.tokenizer.get_vocab() for subject in subjects.values())
    if any(other != vocabulary for other in others):
        sys.stderr.write(
            f"{args.hybrid} has another vocabulary than {args.model}: "
            "it cannot recite its answers\n"
        )
        return 2
    report = bench(subjects, settings, args, load_before)
    write_json(args.json, report.to_json())
    if args.plot:
        results: list[Any] = [outcome.to_json() for outcome in report.outcomes]
        plot.save_speedups(args.plot, results, f"{args.title}: speed-up")
    sys.stdout.write(report.to_text(FULL_LEGEND))
    return 0


def bench(
    subjects: dict[str, Subject],
    settings: SpeculationSettings,
    args: argparse.Namespace,
    load_before: tuple[float, ...],
) -> FullReport:
    """Measure what rounds cost, then all pairs. Subjects by role."""
    random_draft = untrained(subjects[MODEL].draft)
    cases = command.build_cases(subjects[MODEL], random_draft, settings)
    if HYBRID in subjects:
        cases += _recited_cases(subjects[HYBRID], subjects[MODEL], random_draft, settings)
    passes: dict[str, PassCosts] = {}

    def measure_passes(progress: Progress) -> None:
        progress.start("what passes cost")
        for role, subject in subjects.items():
            passes[role] = _pass_costs(subject, settings, args.widths)

    measured = command.run_cases(cases, settings, measure_passes)
    report = FullReport(
        **command.report_fields(subjects, settings, measured, load_before),
        title=args.title,
        passes=passes,
    )
    for name in ("widths", "dtype", "quantize", "inflate", "inflate_draft"):
        report.settings[name] = getattr(args, name)
    return replace(report, bounds=_bounds(report.outcomes, measured, passes))


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


def _bounds(
    outcomes: Sequence[Outcome], measured: Sequence[CaseTrials], passes: Mapping[str, PassCosts]
) -> dict[str, LookupBound]:
    """Return the bounds of single streams, by the names of their cases."""
    trials = {entry.case.name: entry.trials for entry in measured}
    bounds = {}
    for outcome in outcomes:
        case = outcome.case
        if case.streams == 1:
            costs = passes[case.role].rounds
            bounds[case.name] = lookup_bound(trials[case.name], outcome.gain, costs)
    return bounds


def _widths(text: str) -> tuple[int, ...]:
    """Parse widths of passes over the newest token and a draft."""
    widths = numbers(text)
    if widths[0] < 2 or widths[-1] > 1 + MAX_DRAFT_LENGTH:
        raise argparse.ArgumentTypeError(
            f"{text!r}: a pass with a draft is 2 to {1 + MAX_DRAFT_LENGTH} tokens wide"
        )
    return widths


def _read(folder: Path, args: argparse.Namespace) -> Subject:
    return read_subject(
        folder, args.draft, dtype=args.dtype, grow=inflate.growth(args), bits=args.quantize
    )


def _pass_costs(
    subject: Subject, settings: SpeculationSettings, widths: Sequence[int]
) -> PassCosts:
    draft = None
    if subject.draft is not None:
        draft = draft_pass_seconds(subject.draft, settings.context)
    repeats = min(REPEATS, settings.trials)
    return PassCosts(round_costs(subject, settings.context, widths, repeats), draft)


def _recited_cases(
    hybrid: Subject, twin: Subject, random_draft: Any | None, settings: SpeculationSettings
) -> list[SpeculationCase]:
    """Return the hybrid's cases, in which it recites its twin's answers."""
    model = Reciter(hybrid.model)
    recital = Recital(twin, model)
    reciting = replace(hybrid, model=model)
    cases = command.build_cases(reciting, random_draft, settings, HYBRID)
    return [replace(case, prepare=recital.learn) for case in cases]


def _pass_rows(passes: PassCosts) -> TableRows:
    columns = len(PASS_HEAD) - (passes.draft is None)
    rows: TableRows = [PASS_HEAD[:columns]]
    for k, cost, lookup, draft in passes.rows():
        cells = (str(k), f"{cost:.2f}", percent(lookup), percent(draft))
        rows.append(cells[:columns])
    return rows
