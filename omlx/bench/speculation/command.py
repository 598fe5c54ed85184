"""`omlx bench speculation`: what to measure on which model, for how long, where the report goes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from omlx.bench.arguments import add, not_negative, numbers, one_of, positive
from omlx.bench.progress import Progress
from omlx.bench.report import write_json
from omlx.bench.speculation.compare import MODEL
from omlx.bench.speculation.modes import MODE_NAMES, MODES, LearnedStates, chosen_modes
from omlx.bench.speculation.outcome import outcome
from omlx.bench.speculation.report import SpeculationReport
from omlx.bench.speculation.trials import CaseTrials, SpeculationCase, measure
from omlx.bench.subject import Subject, read_subject, untrained
from omlx.bench.workloads import WORKLOAD_NAMES, WORKLOADS

CONTEXT: Final = 600
"""Default length of prompt and answer, in tokens."""


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """`context` is the length of prompt and answer that workloads aim at, in tokens.

    `budget` is the time to measure, in minutes; None for no limit.
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


def add_case_arguments(parser: argparse.ArgumentParser, *, trials: int, context: int) -> None:
    """Add the flags of models, workloads and modes, with these defaults."""
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
    """Measure, write the file, print the tables. Returns 2 if the models do not go together."""
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
    """Raises ValueError for a mode that needs a draft model where none is given."""
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
    """Return a case for each number of streams, workload and mode of the settings."""
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
    """Measure all cases within the budget, of which `before` is a part that runs first."""
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
    """Return the fields of a report on what was measured; subjects by role."""
    outcomes, missing = [], []
    for entry in measured:
        result = outcome(entry)
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
