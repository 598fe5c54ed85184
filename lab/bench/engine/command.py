"""`python -m lab.bench engine`: which suites to run on which model, and where the report goes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final

from lab.bench import inflate, plot
from lab.bench.console import Progress, add, numbers, one_of, output, positive, write_json
from lab.bench.engine.result import EngineReport, EngineResult, equality, one_line, result_of
from lab.bench.engine.suites import EngineCase, EngineSettings, batch, measure, plain, speculative
from lab.bench.host import graphs, host
from lab.bench.subject import Subject, read_subject
from lab.bench.workloads import PROMPTS

Suite = Callable[[Subject, EngineSettings], Iterable[EngineCase]]


def host_suite(subject: Subject, settings: EngineSettings) -> Iterator[EngineCase]:
    """The suite `host`, which needs neither the subject nor its settings."""
    return host()


SUITES: Final[dict[str, Suite]] = {
    "plain": plain,
    "spec": speculative,
    "batch": batch,
    "host": host_suite,
}
GRAPH: Final = "graph"
WITHOUT_ANSWERS: Final = ("host", "noise")
"""Suites whose answers are not compared."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    names = (*SUITES, GRAPH)
    defaults = EngineSettings()
    add(parser, "--model", "--draft", "--dtype", "--json")
    parser.add_argument(
        "--only", type=one_of(names), default=names, metavar="SUITE,…", help=f"of {','.join(names)}"
    )
    parser.add_argument("--workload", choices=PROMPTS, default="edit", help="default %(default)s")
    for flag, default, text in (
        ("--trials", defaults.trials, "default %(default)s"),
        ("--prompts", defaults.prompts, "default %(default)s"),
        ("--tokens", defaults.tokens, "longest answer"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)
    for flag, several, text in (
        ("--windows", defaults.windows, "draft tokens"),
        ("--rows", defaults.rows, "sizes of a batch"),
    ):
        parser.add_argument(flag, type=numbers, default=several, metavar="N,…", help=text)
    inflate.add_arguments(parser)
    parser.add_argument("--plot", type=output, metavar="FILE", help="write the ratios as SVG")


def run(args: argparse.Namespace) -> int:
    """Measure, write the files, print the tables. Returns 2 if the models do not fit together."""
    load_before = os.getloadavg()
    try:
        subject = read_subject(
            args.model,
            args.draft,
            dtype=args.dtype,
            grow=inflate.growth(args),
            workload=args.workload,
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    report = bench(subject, args, load_before)
    report.settings["inflate"] = args.inflate
    if GRAPH in args.only:
        report = replace(report, graphs=graphs(subject.model, subject.draft))
    write_json(args.json, report.to_json())
    if args.plot:
        plot.save_ratios(args.plot, report.results, f"omlx against mlx-lm: {args.model.name}")
    sys.stdout.write(report.to_text())
    return 0


def bench(
    subject: Subject, args: argparse.Namespace, load_before: tuple[float, ...]
) -> EngineReport:
    """Measure the suites that `args` names."""
    settings = EngineSettings(args.trials, args.prompts, args.tokens, args.windows, args.rows)
    names = [name for name in args.only if name != "spec" or subject.draft is not None]
    suites = {name: SUITES[name] for name in names if name in SUITES}
    chosen = {"suites": names, "workload": args.workload, "dtype": args.dtype}
    return EngineReport(
        settings={**asdict(settings), **chosen},
        models=subject.describe(),
        results=run_suites(subject, settings, suites.values()),
        load_before=load_before,
    )


def run_suites(
    subject: Subject, settings: EngineSettings, suites: Iterable[Suite]
) -> list[EngineResult]:
    """Measure all cases and print a line for each. An interrupt keeps the finished ones."""
    cases: list[EngineCase] = []
    for suite in suites:
        cases += suite(subject, settings)
    results: list[EngineResult] = []
    pairs = sum(len(case.pairs) for case in cases) * (settings.trials + 1)
    with suppress(KeyboardInterrupt), Progress(pairs, "pair") as progress:
        for case in cases:
            progress.start(f"{case.suite} {case.name}")
            samples = measure(case, settings.trials, progress.tick)
            result = result_of(samples)
            if case.suite not in WITHOUT_ANSWERS:
                result = replace(result, exact=equality(subject, settings, samples))
            results.append(result)
            progress.write(one_line(result))
    return results
