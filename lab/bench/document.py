"""`python -m lab.bench document PAGE FILE…`: write speculation reports (`--json`) into a page.

The text between the page's two marks is replaced, the rest stays. The chart of `FILE.json` is drawn
beside the page, as `measured/FILE.svg`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lab.bench import plot
from lab.bench.report import EVERYTHING, FORMAT, LEGEND, MISSING

BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"

ReportJson = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument("page", type=Path, metavar="PAGE")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Write the page. Returns 2, and writes nothing, if a report or the page is not fit for it."""
    reports: dict[str, ReportJson] = {}
    for file in args.files:
        report = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(report, dict) or report.get("format") != FORMAT:
            sys.stderr.write(f"{file.name} is no report of benchmarks speculation\n")
            return 2
        reports[file.stem] = report
    page: Path = args.page
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.stderr.write(f"{page} needs the marks {BEGIN} and {END}, each once\n")
        return 2
    (page.parent / "measured").mkdir(exist_ok=True)
    for name, report in reports.items():
        if report["results"]:
            title = f"{report['title']}: speed-up"
            plot.save_speedups(page.parent / _chart(name), report["results"], title)
    sections = [section(name, report) for name, report in reports.items()]
    page.write_text(insert(text, "\n\n".join(sections)), encoding="utf-8")
    return 0


def insert(page: str, measured: str) -> str:
    """Return the page with `measured` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}"


def section(name: str, report: ReportJson) -> str:
    """Return one report as Markdown: conditions, exactness, chart, tables."""
    parts = [f"### {report['title']}", _conditions(report), *_exactness(report)]
    if report["results"]:
        parts.append(f"![{report['title']}: speed-up]({_chart(name)})")
    return "\n\n".join([*parts, *_tables(report["tables"])])


def _chart(name: str) -> str:
    return f"measured/{name}.svg"


def _conditions(report: ReportJson) -> str:
    settings, machine, versions = report["settings"], report["machine"], report["versions"]
    models: dict[str, None] = {}  # in order, each once
    for subject in report["models"].values():
        for role, model in subject.items():
            models[_model(role, model)] = None
    weights = f", {settings['quantize']} bit" if settings.get("quantize") else ""
    blas = f", {', '.join(machine['preloaded'])}" if machine["preloaded"] else ""
    return (
        f"{'; '.join(models)}{weights}. About {settings['context']:,} tokens of context, "
        f"median of {settings['trials']} trials. {machine['platform']}, {machine['cores']} cores, "
        f"{machine['device']}{blas}; mlx {versions['mlx']}, mlx-lm {versions['mlx-lm']}."
    )


def _model(role: str, model: dict[str, Any]) -> str:
    size = f"{model['parameters'] / 1e6:.1f}M parameters"
    dtypes = ", ".join(model["dtype"])
    return f"{role} {model['name']} ({model['architecture']}, {size}, {dtypes})"


def _exactness(report: ReportJson) -> Iterator[str]:
    results = report["results"]
    equal = sum(result["checksum"] == result["plain_checksum"] for result in results)
    errors = sum(result["errors"] for result in results)
    yield (
        f"In {equal} of {len(results)} comparisons all tokens were those of plain decoding; "
        f"{errors} request{'s' * (errors != 1)} failed."
    )
    if report["divergences"]:
        yield "\n".join(f"- {line}" for line in report["divergences"])
    if report["missing"]:
        yield f"{MISSING}: {'; '.join(report['missing'])}."


def _tables(tables: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the tables; the long one comes last, folded."""
    folded = []
    for table in tables:
        rows = _markdown(table["rows"])
        if table["title"] == EVERYTHING:
            legend = LEGEND.replace("\n", " ")
            summary = f"<details><summary>{EVERYTHING}</summary>"
            folded.append(f"{summary}\n\n{legend}\n\n{rows}\n\n</details>")
        else:
            yield f"**{table['title']}**\n\n{rows}"
    yield from folded


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
