"""`python -m omlx.bench.speculation.document PAGE FILE…`: writes the reports of `omlx bench spec --json` into a page.

What stands between the two marks of the page is replaced; the rest stays. The plot of `FILE.json` is drawn beside the
page, as `measured/FILE.svg`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from omlx.bench.speculation.plot import plot
from omlx.bench.speculation.report import EVERYTHING, FORMAT, LEGEND, MISSING

BEGIN: Final = "<!-- measured: begin -->"
END: Final = "<!-- measured: end -->"


def main(arguments: list[str]) -> int:
    """Returns the exit status: 2 if there is nothing to write, or nowhere to write it; nothing is written then."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python -m omlx.bench.speculation.document PAGE FILE…\n")
        return 2
    page, *files = map(Path, arguments)
    reports = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    for name, report in reports.items():
        if not isinstance(report, dict) or report.get("format") != FORMAT:
            sys.stderr.write(f"{name}.json is no report of omlx bench spec\n")
            return 2
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.stderr.write(f"{page} needs the marks {BEGIN} and {END}, each once\n")
        return 2
    (page.parent / "measured").mkdir(exist_ok=True)
    for name, report in reports.items():
        if report["results"]:
            drawn = plot(report["results"], f"{report['title']}: times plain decoding")
            (page.parent / _plot(name)).write_text(drawn, encoding="utf-8")
    sections = (section(name, report) for name, report in reports.items())
    page.write_text(inserted(text, "\n\n".join(sections)), encoding="utf-8")
    return 0


def inserted(page: str, measured: str) -> str:
    """The page with `measured` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}"


def section(name: str, report: dict[str, Any]) -> str:
    """One report as Markdown: what was measured on what, whether it was exact, the plot, the tables."""
    image = (
        [f"![{report['title']}, times plain decoding]({_plot(name)})"] if report["results"] else []
    )
    parts = [
        f"### {report['title']}",
        *_subject(report),
        *_exactness(report),
        *image,
        *_tables(report["tables"]),
    ]
    return "\n\n".join(parts)


def _plot(name: str) -> str:
    return f"measured/{name}.svg"


def _subject(report: dict[str, Any]) -> Iterator[str]:
    settings, machine, versions = report["settings"], report["machine"], report["versions"]
    models = [
        _model(role, each) for models in report["models"].values() for role, each in models.items()
    ]
    weights = f", {settings['quantize']} bit" if settings.get("quantize") else ""
    blas = f", {', '.join(machine['preloaded'])}" if machine["preloaded"] else ""
    yield (
        f"{'; '.join(dict.fromkeys(models))}{weights}. About {settings['context']:,} tokens of context, "
        f"median of {settings['trials']} trials. {machine['platform']}, {machine['cores']} cores, "
        f"{machine['device']}{blas}; mlx {versions['mlx']}, mlx-lm {versions['mlx-lm']}."
    )


def _model(role: str, model: dict[str, Any]) -> str:
    size = f"{model['parameters'] / 1e6:.1f}M"
    return f"{role} {model['name']} ({model['architecture']}, {size} parameters, {', '.join(model['dtype'])})"


def _exactness(report: dict[str, Any]) -> Iterator[str]:
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


def _tables(tables: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What is long comes last, folded."""
    for table in tables:
        if table["title"] != EVERYTHING:
            yield f"**{table['title']}**\n\n{_markdown(table['rows'])}"
    for table in tables:
        if table["title"] == EVERYTHING:
            legend = LEGEND.replace("\n", " ")
            yield f"<details><summary>{EVERYTHING}</summary>\n\n{legend}\n\n{_markdown(table['rows'])}\n\n</details>"


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
