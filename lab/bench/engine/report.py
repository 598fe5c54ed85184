"""The report of `python -m lab.bench engine`: tables for the terminal, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lab.bench.engine.result import EngineResult, summary
from omlx.bench.console import Json, environment, table
from omlx.measure.spread import Series

FORMAT: Final = 1
HEAD: Final = (
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
LEGEND: Final = """\
ratio: median over trials, above 1.00 omlx is better. Rates count from the first tokens on, without
prefill; host is processor time of the host's thread per step. accepted: of the proposed draft
tokens, omlx / mlx-lm. same answers: at T=0 as mlx-lm, else as omlx without speculation; gap: in
logits, of the first tokens that differ."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """`graphs`: microseconds to build the graph of a pass, by model and width, if measured."""

    settings: Json
    models: Json
    results: Sequence[EngineResult]
    load_before: tuple[float, ...]
    graphs: Mapping[str, Mapping[str, Series]] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "format": FORMAT,
            **environment(self.load_before),
            "settings": self.settings,
            "models": self.models,
            "results": [result.to_json() for result in self.results],
            "graph_us": self._graphs_json(),
            "summary": summary(self.results),
        }

    def to_text(self) -> str:
        parts = []
        if self.results:
            parts += [table([HEAD, *map(_row, self.results)]), LEGEND]
        if self.graphs:
            parts.append(table([("graph of", "tokens", "µs", "min–max"), *self._graph_rows()]))
        if self.results:
            rows: list[tuple[str, ...]] = [("summary", "geometric mean", "least", "")]
            for name, figures in summary(self.results).items():
                mean, least = figures["geometric_mean"], figures["least"]
                rows.append((name, f"{mean:.3f}", f"{least:.3f}", ""))
            parts.append(table(rows))
        return "\n\n".join(parts) + "\n"

    def _graph_rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for role, widths in self.graphs.items():
            for width, times in widths.items():
                spread = f"{times.least:.0f}–{times.most:.0f}"
                rows.append((role, width, f"{times.median:.0f}", spread))
        return rows

    def _graphs_json(self) -> Json:
        graphs: Json = {}
        for role, widths in self.graphs.items():
            graphs[role] = {width: times.to_json() for width, times in widths.items()}
        return graphs


def one_line(result: EngineResult) -> str:
    """Return the line that is printed as soon as a case ends."""
    suite, name, _, ours, theirs, unit, ratio, spread, *_ = _row(result)
    return f"{suite} {name}: {ours} against {theirs} {unit}, ratio {ratio} ({spread})"


def _row(result: EngineResult) -> tuple[str, ...]:
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
