"""`python -m benchmarks engine`: `omlx bench engine` with the suites `host` and `graph`.

It can also inflate the models and draw the ratios.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from benchmarks import inflate, plot
from benchmarks.host import graphs, host
from omlx.bench.arguments import output
from omlx.bench.engine import command
from omlx.bench.engine.cases import EngineCase
from omlx.bench.engine.suites import EngineSettings
from omlx.bench.report import write_json
from omlx.bench.subject import Subject, read_subject


def host_suite(subject: Subject, settings: EngineSettings) -> Iterator[EngineCase]:
    """The suite `host`, which needs neither the subject nor its settings."""
    return host()


SUITES: Final[dict[str, command.Suite]] = {**command.SUITES, "host": host_suite}
GRAPH: Final = "graph"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    command.add_arguments(parser, (*SUITES, GRAPH))
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
    report = command.bench(subject, args, SUITES, load_before)
    report.settings["inflate"] = args.inflate
    if GRAPH in args.only:
        report = replace(report, graphs=graphs(subject.model, subject.draft))
    write_json(args.json, report.to_json())
    if args.plot:
        plot.save_ratios(args.plot, report.results, f"omlx against mlx-lm: {args.model.name}")
    sys.stdout.write(report.to_text())
    return 0
