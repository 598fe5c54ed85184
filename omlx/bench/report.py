"""The report of a bench: a table for the terminal, and the same as JSON with machine, versions and raw samples."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from omlx import __version__
from omlx.bench.result import Json, Result, summary

FORMAT = 1
HEAD = (
    "suite",
    "case",
    "against mlx-lm's",
    "omlx",
    "mlx-lm",
    "unit",
    "ratio",
    "min–max",
    "accepted",
    "same answers",
)
LEGEND = """\
ratio: median over trials, above 1.00 omlx is better. Rates count from the first tokens on, prefill apart; host is
processor time of the host's thread a step. accepted: of the proposed draft tokens, omlx / mlx-lm.
same answers: at T=0 as mlx-lm, else as omlx without speculation; gap: in logits, of the tokens that first differ."""


@dataclass(frozen=True, slots=True)
class Report:
    settings: Json
    models: Json
    results: Seq[Result]
    graphs: Mapping[str, Json]
    load_before: tuple[float, ...]

    def to_json(self) -> Json:
        return {
            "format": FORMAT,
            "machine": machine(self.load_before),
            "versions": versions(),
            "settings": self.settings,
            "models": self.models,
            "results": [result.to_json() for result in self.results],
            "graph_us": dict(self.graphs),
            "summary": summary(self.results),
        }

    def to_text(self) -> str:
        parts = []
        if self.results:
            parts += [table([HEAD, *(_row(result) for result in self.results)]), LEGEND]
        if self.graphs:
            rows = [
                (
                    role,
                    width,
                    f"{samples['median']:.0f}",
                    f"{samples['min']:.0f}–{samples['max']:.0f}",
                )
                for role, widths in self.graphs.items()
                for width, samples in widths.items()
                if isinstance(samples, dict)
            ]
            parts.append(table([("graph of", "tokens", "µs", "min–max"), *rows]))
        rows = [
            (name, f"{figures['geometric_mean']:.3f}", f"{figures['least']:.3f}", "")
            for name, figures in summary(self.results).items()
        ]
        if rows:
            parts.append(table([("summary", "geometric mean", "least", ""), *rows]))
        return "\n\n".join(parts) + "\n"


def write_json(file: Path | None, report: Json) -> None:
    """Write a report where one is wanted. A figure that is none, such as the ratio of what could not be timed, is null:
    JSON has no word for it."""
    if file is not None:
        file.write_text(
            json.dumps(_told(report), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )


def _told(value: object) -> object:
    if isinstance(value, dict):
        return {key: _told(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(rows: Iterable[Seq[str]]) -> str:
    """Columns aligned left, the first row underlined."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths).rstrip(), *lines[1:]])


def machine(load_before: tuple[float, ...]) -> Json:
    """What the figures were taken on. The load tells whether something else was running; ours is in the second."""
    preloaded = [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":") if name]
    return {
        "platform": f"{platform.system()} {platform.release().split('-')[0]}",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "preloaded": preloaded,
        "load_before": list(load_before),
        "load_after": list(os.getloadavg()),
    }


def versions() -> Json:
    names = ("mlx", "mlx-lm")
    return {
        "omlx": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def one_line(result: Result) -> str:
    """What is told of a case as soon as it ends."""
    suite, name, _, ours, theirs, unit, ratio, spread, *_ = _row(result)
    return f"{suite} {name}: {ours} against {theirs} {unit}, ratio {ratio} ({spread})"


def _row(result: Result) -> tuple[str, ...]:
    accepted = ""
    if result.our_acceptance is not None:
        theirs = "–" if result.their_acceptance is None else f"{result.their_acceptance:.2f}"
        accepted = f"{result.our_acceptance:.2f} / {theirs}"
    return (
        result.case.suite,
        result.case.name,
        result.case.baseline,
        f"{result.ours.median:.1f}",
        f"{result.theirs.median:.1f}",
        result.case.unit,
        f"{result.ratio.median:.3f}",
        f"{result.ratio.least:.3f}–{result.ratio.most:.3f}",
        accepted,
        "" if result.exact is None else str(result.exact),
    )
