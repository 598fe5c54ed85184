"""`python -m lab.conformance URL`: check any server with OpenAI's chat API from outside.

Exit status: 0 if no check fails, 1 if a check fails, 2 if the server does not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NoReturn

from tqdm import tqdm

from lab.conformance.checks import CHECKS, judge
from lab.conformance.client import Client, Outcome, Result, Unreachable
from omlx import __version__
from omlx.catalog import escaped
from omlx.cli.main import run_process
from omlx.cli.output import columns


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and print the report."""
    parser = argparse.ArgumentParser(prog="python -m lab.conformance", description=__doc__)
    parser.add_argument("url", metavar="URL", help="address of the server, with or without /v1")
    parser.add_argument("--model", help="by default the first one that the server lists")
    parser.add_argument("--api-key", metavar="KEY", help="the server's API key")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    args = parser.parse_args(arguments)
    try:
        client = Client(args.url, args.api_key)
        client.connect(args.model)
    except Unreachable as error:
        sys.stderr.write(f"{escaped(str(error))}\n")
        return 2
    report = Report(client.url, client.model, _check(client))
    if args.json:
        json.dump(report.record(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif args.markdown:
        sys.stdout.write(report.markdown())
    else:
        sys.stdout.write(columns(report.rows) + report.summary + "\n")
    return 0 if report.passed else 1


def _check(client: Client) -> list[Result]:
    results = []
    tqdm.monitor_interval = 0  # no thread of its own
    bar: tqdm[NoReturn]
    with tqdm(total=len(CHECKS), unit="check", disable=None, leave=False, ncols=80) as bar:
        for check in CHECKS:
            bar.set_description(check.title)
            results.append(judge(check, client))
            bar.update()
    return results


_MARKS: Final = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_SUPPORTED: "–"}


@dataclass(frozen=True, slots=True)
class Report:
    url: str
    model: str
    results: Sequence[Result]

    @property
    def passed(self) -> bool:
        return all(result.outcome is not Outcome.FAILED for result in self.results)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells for a terminal, one row per check."""
        return [
            (_MARKS[result.outcome], result.title, result.outcome, result.seen)
            for result in self.results
        ]

    @property
    def summary(self) -> str:
        counted = Counter(result.outcome for result in self.results)
        return ", ".join(f"{counted[outcome]} {outcome}" for outcome in Outcome)

    def markdown(self) -> str:
        place = f"{_cell(self.model)} at {_cell(self.url)}"
        lines = [
            f"{place}, {_today()}, omlx {__version__}: {self.summary}",
            "",
            "| check | outcome | seen |",
            "|---|---|---|",
        ]
        lines += [
            f"| {result.title} | {result.outcome} | {_cell(result.seen)} |"
            for result in self.results
        ]
        return "\n".join(lines) + "\n"

    def record(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model,
            "date": _today(),
            "omlx": __version__,
            "checks": [asdict(result) for result in self.results],
        }


def _cell(text: str) -> str:
    """Escape control characters and Markdown in a server's text."""
    for mark in "\\|<>`*_[]":
        text = text.replace(mark, f"\\{mark}")
    return escaped(text)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


if __name__ == "__main__":
    run_process(main)
