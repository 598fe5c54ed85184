"""A stored benchmark as JSON and as Markdown."""

from __future__ import annotations

from omlx.catalog import sentence

from .. import formats
from ..settings.view import Json
from .view import MEASURES, RunView, rate_of

COLUMNS = ("prompt", "streams", "prefill", "first", "plain", "drafted", "accepted", "memory")


def to_json(run: RunView) -> Json:
    """Return the record with its conditions."""
    return {"at": run.at, "omlx": run.version, "machine": run.machine, **run.record}


def to_markdown(run: RunView, language: str) -> str:
    """Return a heading, the conditions, and a table; rates in tokens per second."""
    heads = [sentence(f"ui.bench.{column}", {}, language) for column in COLUMNS]
    lines = [
        f"# {run.record['model'].replace('|', '')}",
        "",
        f"omlx {run.version} · {run.machine} · {formats.moment(run.at)}",
        "",
        _line(heads),
        _line(["---:"] * len(heads)),
    ]
    lines += [_line(_cells(row)) for row in run.record["rows"]]
    return "\n".join(lines) + "\n"


def _cells(row: Json) -> list[str]:
    rates = {measure: rate_of(row, measure) for measure in MEASURES}
    texts = {name: "–" if rate is None else formats.rate(rate) for name, rate in rates.items()}
    first, accepted, memory = row["first_s"], row["acceptance"], row["memory_bytes"]
    return [
        f"{row['tokens']}",
        f"{row['streams']}",
        texts["prefill"],
        "–" if first is None else f"{first:.2f} s",
        texts["plain"],
        texts["drafted"],
        "–" if accepted is None else formats.percent(accepted),
        "–" if memory is None else formats.memory(memory),
    ]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
