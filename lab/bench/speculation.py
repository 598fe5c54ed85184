"""`python -m lab.bench speculation`: every mode against plain decoding, workload by workload.

It measures what rounds cost, compares prompt lookup with its oracle and a hybrid with its
attention twin, can inflate the models, and draws the speed-ups.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lab.bench import inflate, plot
from lab.bench.cases import (
    MODES,
    CaseTrials,
    LearnedStates,
    SpeculationCase,
    add_case_arguments,
    chosen_modes,
    measure,
)
from lab.bench.console import Progress, model_dir, not_negative, numbers, output, write_json
from lab.bench.oracle import LookupBound, lookup_bound
from lab.bench.outcome import HYBRID, MODEL, Outcome
from lab.bench.recital import Recital, Reciter
from lab.bench.report import SpeculationReport
from lab.bench.round_costs import REPEATS, WIDTHS, PassCosts, draft_pass_seconds, round_costs
from lab.bench.subject import Subject, read_subject, untrained
from lab.bench.workloads import WORKLOADS
from omlx.draft_length import MAX_DRAFT_LENGTH

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
    """Add the command's flags to `parser`."""
    add_case_arguments(parser, trials=9, context=CONTEXT)
    parser.add_argument(
        "--streams", type=numbers, default=(1, 2, 4), metavar="N,…", help="requests at a time"
    )
    parser.add_argument(
        "--budget", type=not_negative, metavar="MINUTES", help="stop measuring after this long"
    )
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
        settings = _read_settings(args)
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
    sys.stdout.write(report.to_text())
    return 0


def bench(
    subjects: Mapping[str, Subject],
    settings: SpeculationSettings,
    args: argparse.Namespace,
    load_before: tuple[float, ...],
) -> SpeculationReport:
    """Measure what rounds cost, then all pairs. Subjects by role."""
    random_draft = untrained(subjects[MODEL].draft)
    cases = _build_cases(subjects[MODEL], random_draft, settings)
    if HYBRID in subjects:
        cases += _recited_cases(subjects[HYBRID], subjects[MODEL], random_draft, settings)
    passes: dict[str, PassCosts] = {}

    def measure_passes(progress: Progress) -> None:
        progress.start("what passes cost")
        for role, subject in subjects.items():
            passes[role] = _pass_costs(subject, settings, args.widths)

    measured = _run_cases(cases, settings, measure_passes)
    outcomes, missing = _outcomes(measured, settings.trials)
    conversions = ("widths", "dtype", "quantize", "inflate", "inflate_draft")
    return SpeculationReport(
        settings=asdict(settings) | {name: getattr(args, name) for name in conversions},
        models={role: subject.describe() for role, subject in subjects.items()},
        outcomes=outcomes,
        missing=missing,
        load_before=load_before,
        title=args.title,
        passes=passes,
        bounds=_bounds(outcomes, measured, passes),
    )


def _outcomes(measured: Sequence[CaseTrials], trials: int) -> tuple[list[Outcome], list[str]]:
    """Return the outcomes, and the cases with fewer timed trials than `trials`."""
    outcomes, missing = [], []
    for entry in measured:
        result = Outcome.of(entry)
        timed = 0
        if result is not None:
            outcomes.append(result)
            timed = len(result.gain.known)
        if timed < trials:
            missing.append(f"{entry.case.name}: {timed} of {trials} trials")
    return outcomes, missing


def _read_settings(args: argparse.Namespace) -> SpeculationSettings:
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


def _build_cases(
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


def _run_cases(
    cases: list[SpeculationCase],
    settings: SpeculationSettings,
    before: Callable[[Progress], None],
) -> list[CaseTrials]:
    """Run `before`, then measure all cases, together within the budget."""
    deadline = None
    if settings.budget is not None:
        deadline = time.monotonic() + 60 * settings.budget
    with Progress(len(cases) * (settings.trials + 1), "pair", deadline) as progress:
        before(progress)
        return measure(cases, settings.trials, progress, deadline)


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
    cases = _build_cases(reciting, random_draft, settings, HYBRID)
    return [replace(case, prepare=recital.learn) for case in cases]
