"""`omlx bench COMMAND`: `engine` is here (which suites to run on which model, and where the report goes), the others
have modules of their own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from types import ModuleType
from typing import Final

from omlx.bench.arguments import add, numbers, one_of, positive
from omlx.bench.exact import exactness
from omlx.bench.host import graphs, host
from omlx.bench.http import command as http_command
from omlx.bench.measure import Case, measure
from omlx.bench.plot import plot
from omlx.bench.prefix import command as prefix_command
from omlx.bench.progress import Progress
from omlx.bench.prompts import WORKLOADS
from omlx.bench.report import Report, one_line, write_json
from omlx.bench.result import Result, result_of
from omlx.bench.speculation import command, rounding
from omlx.bench.subject import Subject, read_subject
from omlx.bench.suites import Settings, batch, plain, spec

SUITES: Final = ("plain", "spec", "batch", "host", "graph")
OTHERS: Final[dict[str, tuple[ModuleType, str]]] = {
    "spec": (command, "measure speculation against plain decoding"),
    "exact": (rounding, "compare speculation with plain decoding, token by token"),
    "prefix": (prefix_command, "measure kept prefixes, beside mlx-lm's server"),
    "http": (http_command, "measure the HTTP layer against the engine alone"),
}
"""Modules with `add_arguments(parser)` and `run(args)`, and what their help says."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the bench's own subcommands and their flags."""
    commands = parser.add_subparsers(dest="bench", metavar="COMMAND", required=True)
    for name, (module, text) in OTHERS.items():
        module.add_arguments(commands.add_parser(name, help=text))
    engine = commands.add_parser("engine", help="measure the engine against mlx-lm, without HTTP")
    add(engine, "--model", "--draft")
    engine.add_argument(
        "--only",
        type=one_of(SUITES),
        default=SUITES,
        metavar="SUITE,…",
        help=f"of {','.join(SUITES)}",
    )
    engine.add_argument(
        "--trials", type=positive, default=Settings.trials, metavar="N", help="default %(default)s"
    )
    engine.add_argument(
        "--prompts",
        type=positive,
        default=Settings.prompts,
        metavar="N",
        help="default %(default)s",
    )
    engine.add_argument(
        "--workload", choices=tuple(WORKLOADS), default="edit", help="default %(default)s"
    )
    engine.add_argument(
        "--tokens", type=positive, default=Settings.tokens, metavar="N", help="longest answer"
    )
    engine.add_argument(
        "--windows", type=numbers, default=Settings.windows, metavar="N,…", help="draft tokens"
    )
    engine.add_argument(
        "--rows", type=numbers, default=Settings.rows, metavar="N,…", help="sizes of a batch"
    )
    add(engine, "--dtype", "--inflate", "--inflate-draft", "--json", "--plot")


def run(args: argparse.Namespace) -> int:
    """Measure, write the files, print the table. Returns the exit status: 2 if the models do not go together.

    Being asked to terminate is as an interrupt: what was measured is told, and servers that were started are stopped.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.bench in OTHERS:
        module, _ = OTHERS[args.bench]
        status: int = module.run(args)
        return status
    load_before = os.getloadavg()
    try:
        subject = read_subject(
            args.model,
            args.draft,
            dtype=args.dtype,
            inflate_to=args.inflate,
            inflate_draft=args.inflate_draft,
            workload=args.workload,
        )
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    settings = Settings(args.trials, args.prompts, args.tokens, args.windows, args.rows)
    suites = [suite for suite in args.only if suite != "spec" or subject.draft is not None]
    results = run_suites(subject, settings, suites)
    chosen = {
        "suites": suites,
        "workload": args.workload,
        "dtype": args.dtype,
        "inflate": args.inflate,
    }
    report = Report(
        settings={**asdict(settings), **chosen},
        models=subject.describe(),
        results=results,
        graphs=graphs(subject.model, subject.draft) if "graph" in suites else {},
        load_before=load_before,
    )
    write_json(args.json, report.to_json())
    if args.plot:
        args.plot.write_text(
            plot(results, f"omlx against mlx-lm: {args.model.name}"), encoding="utf-8"
        )
    sys.stdout.write(report.to_text())
    return 0


def run_suites(subject: Subject, settings: Settings, suites: Iterable[str]) -> list[Result]:
    """Measure the cases of these suites, one after another, and tell of each.

    An interrupt ends it early, with the cases that were finished.
    """
    makers: dict[str, Callable[[], Iterable[Case]]] = {
        "plain": lambda: plain(subject, settings),
        "spec": lambda: spec(subject, settings),
        "batch": lambda: batch(subject, settings),
        "host": host,
    }
    cases = [case for suite in suites if suite in makers for case in makers[suite]()]
    results: list[Result] = []
    pairs = sum(len(case.pairs) for case in cases) * (settings.trials + 1)
    with suppress(KeyboardInterrupt), Progress(pairs, "pair") as progress:
        for case in cases:
            progress.runs(f"{case.suite} {case.name}")
            measured = measure(case, settings.trials, progress.tick)
            exact = (
                None if case.suite in ("host", "noise") else exactness(subject, settings, measured)
            )
            results.append(result_of(measured, exact))
            progress.tell(one_line(results[-1]))
    return results
