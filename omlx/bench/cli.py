"""`omlx bench engine`: which suites to run on which model, and where the report goes. The other
benches have modules of their own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tqdm import tqdm

from omlx.bench.arguments import amount, model_dir, numbers, one_of, positive
from omlx.bench.exact import exactness
from omlx.bench.host import graphs, host
from omlx.bench.http import command as http_command
from omlx.bench.measure import Case, measure
from omlx.bench.plot import plot
from omlx.bench.prefix import command as prefix_command
from omlx.bench.prompts import WORKLOADS
from omlx.bench.report import Report, one_line
from omlx.bench.result import Result, result_of
from omlx.bench.spec import command, rounding
from omlx.bench.subject import Subject, read_subject
from omlx.bench.suites import Settings, batch, plain, spec

SUITES: Final = ("plain", "spec", "batch", "host", "graph")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the bench's own subcommands and their flags."""
    commands = parser.add_subparsers(dest="bench", metavar="COMMAND", required=True)
    speculation = commands.add_parser("spec", help="measure speculation against plain decoding")
    command.add_arguments(speculation)
    exact = commands.add_parser("exact", help="compare speculation with plain decoding, token by token")
    rounding.add_arguments(exact)
    prefixes = commands.add_parser("prefix", help="measure kept prefixes, beside mlx-lm's server")
    prefix_command.add_arguments(prefixes)
    http = commands.add_parser("http", help="measure the HTTP layer against the engine alone")
    http_command.add_arguments(http)
    engine = commands.add_parser("engine", help="measure the engine against mlx-lm, without HTTP")
    engine.add_argument("--model", type=model_dir, metavar="DIR", required=True, help="folder of the model")
    engine.add_argument("--draft", type=model_dir, metavar="DIR", help="folder of a draft model; without: no spec")
    engine.add_argument("--only", type=one_of(SUITES), default=SUITES, metavar="SUITE,…", help=f"of {','.join(SUITES)}")
    engine.add_argument("--trials", type=positive, default=Settings.trials, metavar="N", help="default %(default)s")
    engine.add_argument("--prompts", type=positive, default=Settings.prompts, metavar="N", help="default %(default)s")
    engine.add_argument("--workload", choices=tuple(WORKLOADS), default="edit", help="default %(default)s")
    engine.add_argument("--tokens", type=positive, default=Settings.tokens, metavar="N", help="longest answer")
    engine.add_argument("--windows", type=numbers, default=Settings.windows, metavar="N,…", help="draft tokens")
    engine.add_argument("--rows", type=numbers, default=Settings.rows, metavar="N,…", help="sizes of a batch")
    engine.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="convert the weights")
    engine.add_argument(
        "--inflate", type=amount, default=0, metavar="N", help="add identity layers up to N parameters, such as 20M"
    )
    engine.add_argument("--inflate-draft", action="store_true", help="grow the draft by the same factor")
    engine.add_argument("--json", type=Path, metavar="FILE", help="write everything, raw samples too")
    engine.add_argument("--plot", type=Path, metavar="FILE", help="write the ratios as SVG")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, write the files. Returns the exit status: 2 if the models do not go together."""
    if args.bench == "spec":
        return command.run(args)
    if args.bench == "exact":
        return rounding.run(args)
    if args.bench == "prefix":
        return prefix_command.run(args)
    if args.bench == "http":
        return http_command.run(args)
    load_before = os.getloadavg()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        subject = read_subject(
            args.model,
            args.draft,
            dtype=args.dtype,
            inflate_to=args.inflate,
            inflate_draft=args.inflate_draft,
            workload=args.workload,
        )
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    settings = Settings(args.trials, args.prompts, args.tokens, args.windows, args.rows)
    suites = [suite for suite in args.only if suite != "spec" or subject.draft is not None]
    results = run_suites(subject, settings, suites)
    chosen = {"suites": suites, "workload": args.workload, "dtype": args.dtype, "inflate": args.inflate}
    report = Report(
        settings={**asdict(settings), **chosen},
        models=subject.describe(),
        results=results,
        graphs=graphs(subject.model, subject.draft) if "graph" in suites else {},
        load_before=load_before,
    )
    sys.stdout.write(report.to_text())
    if args.json:
        args.json.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    if args.plot:
        args.plot.write_text(plot(results, f"omlx against mlx-lm: {args.model.name}"), encoding="utf-8")
    return 0


def run_suites(subject: Subject, settings: Settings, suites: Iterable[str]) -> list[Result]:
    """Measure the cases of these suites, one after another, with a progress bar on a terminal, and tell of each.

    An interrupt, or being asked to terminate, ends it early, with the cases that were finished.
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
    with suppress(KeyboardInterrupt), tqdm(total=pairs, unit="pair", disable=None) as bar:
        for case in cases:
            bar.set_description(f"{case.suite} {case.name}")
            measured = measure(case, settings.trials, bar.update)
            exact = None if case.suite in ("host", "noise") else exactness(subject, settings, measured)
            results.append(result_of(measured, exact))
            bar.write(one_line(results[-1]), file=sys.stderr)
    return results
