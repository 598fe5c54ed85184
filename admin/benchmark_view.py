"""The table of a benchmark for people, in exports and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omlx.catalog import SOURCE, sentence

from .web import formats

Record = Mapping[str, Any]
"""A report, or a row of a report, as JSON."""

MEASURES = ("prefill", "plain", "drafted")
"""Rates of a row — keys of the report."""

COLUMNS = (
    *("prompt", "streams", "prefill", "first", "plain", "drafted", "accepted", "memory"),
    "verdict",
)


def table(record: Record, language: str = SOURCE) -> list[tuple[str, ...]]:
    """Return the heads and the rows of a report, as cells; rates in tokens per second."""
    heads = tuple(sentence(f"ui.bench.{column}", {}, language) for column in COLUMNS)
    return [heads, *(_cells(row, language) for row in record["rows"])]


def _cells(row: Record, language: str) -> tuple[str, ...]:
    rates = [rate_of(row, measure) for measure in MEASURES]
    verdict, none = row.get("verdict"), "–"
    if row.get("busy"):
        none = sentence("ui.measure.busy", {}, language)
    prefill, plain, drafted = (none if rate is None else formats.rate(rate) for rate in rates)
    first, accepted, memory = row["first_s"], row["acceptance"], row["memory_bytes"]
    return (
        f"{row['tokens']}",
        f"{row['streams']}",
        prefill,
        "–" if first is None else f"{first:.2f} s",
        plain,
        drafted,
        "–" if accepted is None else formats.percent(accepted),
        "–" if memory is None else formats.memory(memory),
        "–" if verdict is None else verdict_sentence(verdict, language),
    )


def verdict_sentence(verdict: Record, language: str) -> str:
    """Return the effect of drafts in a row, in words."""
    names = [name for name in ("speedup", "low", "high") if name in verdict]
    params = {name: formats.ratio(verdict[name]) for name in names}
    return sentence(verdict["code"], {**verdict, **params}, language)


def rate_of(row: Record | None, measure: str) -> float | None:
    """Return tokens per second of a measure; None if not measured."""
    value = None if row is None else row[measure]
    if isinstance(value, dict):
        value = value["median"]
    return None if value is None else float(value)
