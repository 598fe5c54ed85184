"""The report of `omlx bench speculation`: tables for the terminal, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, isnan
from typing import Final

from omlx.bench.report import Json, environment, table
from omlx.bench.speculation.compare import Comparison, auto_against_fixed, declared_draft_length
from omlx.bench.speculation.outcome import Outcome

FORMAT: Final = "omlx-bench-spec/1"
EVERYTHING: Final = "All figures"
HEAD: Final = (
    "model",
    "workload",
    "mode",
    "streams",
    "tok/s",
    "wall s",
    "accepted",
    "Δ tok/s",
    "spread",
    "Δ wall",
    "cold",
    "errors",
    "tokens",
    "request and gates, most",
)
COMPARISON_HEAD: Final = (
    "model",
    "workload",
    "mode",
    "speed-up",
    "against",
    "its speed-up",
    "ratio within trials",
)
LEGEND: Final = """\
Δ: change against plain decoding, median over trials of the ratio within each; spread: its least and
greatest value. tok/s: from the first tokens on, until one of several streams ends; wall: with
prefill. cold: the first request that the mode ever saw. tokens: checksum of all answers; = the same
as plain decoding, else the number of answers that differ and the largest margin between the
candidates, in logits."""
MISSING: Final = "Fewer trials than requested (out of time, or answers too short to be timed)"

TableRows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """`missing`: cases with fewer trials than requested; `title`: its heading in a document."""

    settings: Json
    models: Json
    outcomes: Sequence[Outcome]
    missing: Sequence[str]
    load_before: tuple[float, ...]
    title: str = "Measured"

    def to_json(self) -> Json:
        tables = []
        for title, rows in self.tables():
            tables.append({"title": title, "rows": list(map(list, rows))})
        comparisons = auto_against_fixed(self.outcomes)
        return {
            "format": FORMAT,
            **environment(self.load_before),
            "title": self.title,
            "settings": self.settings,
            "models": self.models,
            "passes": {},
            "results": [outcome.to_json() for outcome in self.outcomes],
            "auto_against_best_fixed": [comparison.to_json() for comparison in comparisons],
            "hybrid_against_twin": [],
            "draft_window": declared_draft_length(self.outcomes),
            "missing": list(self.missing),
            "tables": tables,
            "divergences": list(divergence_lines(self.outcomes)),
        }

    def to_text(self, legend: str = LEGEND) -> str:
        parts = [f"{title}\n\n{table(rows)}" for title, rows in self.tables()]
        if self.outcomes:
            parts.append(legend)
        parts += [f"First difference: {line}" for line in divergence_lines(self.outcomes)]
        if self.missing:
            parts.append(f"{MISSING}: {'; '.join(self.missing)}")
        return "\n\n".join(parts) + "\n"

    def tables(self) -> Iterator[tuple[str, TableRows]]:
        """Yield titles and rows, the head first."""
        if self.outcomes:
            yield EVERYTHING, [HEAD, *map(row, self.outcomes)]
        yield from _overviews(self.outcomes)
        yield from comparison_table(
            "auto against the best fixed draft length", auto_against_fixed(self.outcomes)
        )


def row(outcome: Outcome) -> tuple[str, ...]:
    """Return the cells of an outcome under `HEAD`."""
    case = outcome.case
    return (
        case.role,
        case.workload.name,
        case.mode.name,
        str(case.streams),
        f"{outcome.rate.median:.1f}",
        f"{outcome.wall.median:.2f}",
        percent(outcome.sample.acceptance_rate),
        _change(outcome.gain.median),
        f"×{outcome.gain.least:.2f}–{outcome.gain.most:.2f}",
        _change(1 / outcome.wall_gain.median),
        _change(outcome.cold),
        str(outcome.errors),
        _tokens(outcome),
        outcome.commonest_codes,
    )


def comparison_table(
    title: str, comparisons: Iterator[Comparison]
) -> Iterator[tuple[str, TableRows]]:
    """Yield the table of these comparisons if there are any."""
    rows = [comparison.cells for comparison in comparisons]
    if rows:
        yield title, [COMPARISON_HEAD, *rows]


def divergence_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        for found in outcome.divergences:
            place = f"trial {found.trial}, answer {found.answer}, token {found.token}"
            yield f"{outcome.case.name}: {place}, margin {found.margin:.1e}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _overviews(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, TableRows]]:
    """Yield speed-ups by workload and mode: one table for each model and number of streams."""
    gains: dict[tuple[str, int], dict[str, dict[str, str]]] = {}
    for outcome in outcomes:
        case = outcome.case
        workloads = gains.setdefault((case.role, case.streams), {})
        by_mode = workloads.setdefault(case.workload.name, {})
        by_mode[case.mode.name] = f"{outcome.gain.median:.2f}"
    for (role, streams), workloads in gains.items():
        modes = list(dict.fromkeys(chain.from_iterable(workloads.values())))
        rows: TableRows = [("workload", *modes)]
        for workload, by_mode in workloads.items():
            rows.append((workload, *(by_mode.get(mode, "") for mode in modes)))
        yield f"Speed-up, {role}, {streams} stream{'s' * (streams > 1)}", rows


def _tokens(outcome: Outcome) -> str:
    if outcome.exact:
        return f"{outcome.checksum} ="
    largest = max((found.margin for found in outcome.divergences), default=inf)
    return f"{outcome.checksum} {len(outcome.divergences)} differ, margin ≤ {largest:.0e}"


def _change(ratio: float) -> str:
    return "–" if isnan(ratio) else f"{100 * (ratio - 1):+.0f} %"
