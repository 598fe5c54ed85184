"""The report of speculation against plain decoding: tables, JSON, legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf, isnan
from typing import Final

from lab.bench.console import Json, environment, table
from lab.bench.oracle import LookupBound
from lab.bench.outcome import (
    Comparison,
    Outcome,
    auto_against_fixed,
    declared_draft_length,
    hybrid_against_twin,
)
from lab.bench.round_costs import PassCosts
from omlx.engine.speculation.drafters.ngram import NgramDrafter

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
BOUND_HEAD: Final = (
    "model",
    "workload",
    "mode",
    "coverage",
    "oracle",
    "reached",
    "coverage alone",
    "reached",
)
PASS_HEAD: Final = (
    "draft length",
    "round / plain step",
    "prompt lookup",
    "draft model",
)
LEGEND: Final = """\
Δ: change against plain decoding, median over trials of the ratio within each; spread: its least and
greatest value. tok/s: from the first tokens on, until one of several streams ends; wall: with
prefill. cold: the first request that the mode ever saw. tokens: checksum of all answers; = the same
as plain decoding, else the number of answers that differ and the largest margin between the
candidates, in logits. busy: other programs kept the processors so busy that there is no figure.
Oracle: it knows where and how far to copy; reached: the speed-up as a share of its own (a draft
model can exceed it). Coverage alone: the best draft length if as many tokens are proposed correctly
but rejections fall anywhere (streams 1). Break-even –: no acceptance rate would do."""
BUSY: Final = "busy"
MISSING: Final = "Fewer trials than requested (out of time, or answers too short to be timed)"

TableRows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """`missing`: cases with fewer trials than requested; `title`: heading in a document.

    `passes` by role; `bounds` by the outcome's case name, for single streams.
    """

    settings: Json
    models: Json
    outcomes: Sequence[Outcome]
    missing: Sequence[str]
    load_before: tuple[float, ...]
    title: str = "Measured"
    passes: Mapping[str, PassCosts] = field(default_factory=dict)
    bounds: Mapping[str, LookupBound] = field(default_factory=dict)

    @property
    def quiet(self) -> list[Outcome]:
        """Outcomes measured on a quiet machine."""
        return [outcome for outcome in self.outcomes if not outcome.busy]

    def to_json(self) -> Json:
        tables = []
        for title, rows in self.tables():
            tables.append({"title": title, "rows": list(map(list, rows))})
        comparisons = auto_against_fixed(self.quiet)
        twins = hybrid_against_twin(self.outcomes)
        return {
            "format": FORMAT,
            **environment(self.load_before),
            "title": self.title,
            "settings": self.settings,
            "models": self.models,
            "passes": {role: passes.to_json() for role, passes in self.passes.items()},
            "results": list(map(self._result, self.outcomes)),
            "auto_against_best_fixed": [comparison.to_json() for comparison in comparisons],
            "hybrid_against_twin": [comparison.to_json() for comparison in twins],
            "draft_window": declared_draft_length(self.quiet),
            "missing": list(self.missing),
            "tables": tables,
            "divergences": list(_divergence_lines(self.outcomes)),
        }

    def to_text(self) -> str:
        parts = [f"{title}\n\n{table(rows)}" for title, rows in self.tables()]
        if self.outcomes:
            parts.append(LEGEND)
        parts += [f"First difference: {line}" for line in _divergence_lines(self.outcomes)]
        if self.missing:
            parts.append(f"{MISSING}: {'; '.join(self.missing)}")
        return "\n\n".join(parts) + "\n"

    def tables(self) -> Iterator[tuple[str, TableRows]]:
        """Yield titles and rows, the head first."""
        if self.outcomes:
            yield EVERYTHING, [HEAD, *map(row, self.outcomes)]
        yield from _overviews(self.outcomes)
        bounds = list(self._bound_rows())
        if bounds:
            yield "Upper bound of prompt lookup", [BOUND_HEAD, *bounds]
        yield from _comparison_table(
            "auto against the best fixed draft length", auto_against_fixed(self.quiet)
        )
        yield from _comparison_table(
            "The hybrid against its attention twin, both writing the twin's answers",
            hybrid_against_twin(self.outcomes),
        )
        for role, passes in self.passes.items():
            yield f"Break-even acceptance rate by draft length ({role})", _pass_rows(passes)

    def _result(self, outcome: Outcome) -> Json:
        bound = self.bounds.get(outcome.case.name)
        return {**outcome.to_json(), "perfect_lookup": None if bound is None else bound.to_json()}

    def _bound_rows(self) -> Iterator[tuple[str, ...]]:
        for outcome in self.outcomes:
            bound = self.bounds.get(outcome.case.name)
            if bound is None or NgramDrafter.kind not in outcome.drafters:
                continue
            case = outcome.case
            yield (
                case.role,
                case.workload.name,
                case.mode.name,
                _percent(bound.bound.coverage),
                f"{bound.bound.speedup:.2f}",
                _percent(bound.reached.median),
                f"{bound.allowed:.2f}",
                _percent(outcome.gain.median / bound.allowed),
            )


def row(outcome: Outcome) -> tuple[str, ...]:
    case, accepted = outcome.case, _percent(outcome.sample.acceptance_rate)
    figures: tuple[str, ...] = (BUSY, "–", accepted, "–", "–", "–", "–")
    if not outcome.busy:
        figures = (
            f"{outcome.rate.median:.1f}",
            f"{outcome.wall.median:.2f}",
            accepted,
            _change(outcome.gain.median),
            f"×{outcome.gain.least:.2f}–{outcome.gain.most:.2f}",
            _change(1 / outcome.wall_gain.median),
            _change(outcome.cold),
        )
    return (
        case.role,
        case.workload.name,
        case.mode.name,
        str(case.streams),
        *figures,
        str(outcome.errors),
        _tokens(outcome),
        outcome.commonest_codes,
    )


def _comparison_table(
    title: str, comparisons: Iterator[Comparison]
) -> Iterator[tuple[str, TableRows]]:
    rows = [comparison.cells for comparison in comparisons]
    if rows:
        yield title, [COMPARISON_HEAD, *rows]


def _divergence_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        for found in outcome.divergences:
            place = f"trial {found.trial}, answer {found.answer}, token {found.token}"
            yield f"{outcome.case.name}: {place}, margin {found.margin:.1e}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _overviews(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, TableRows]]:
    """Yield speed-ups by workload and mode: one table per model and number of streams."""
    gains: dict[tuple[str, int], dict[str, dict[str, str]]] = {}
    for outcome in outcomes:
        case = outcome.case
        workloads = gains.setdefault((case.role, case.streams), {})
        by_mode = workloads.setdefault(case.workload.name, {})
        by_mode[case.mode.name] = BUSY if outcome.busy else f"{outcome.gain.median:.2f}"
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


def _pass_rows(passes: PassCosts) -> TableRows:
    columns = len(PASS_HEAD) - (passes.draft is None)
    rows: TableRows = [PASS_HEAD[:columns]]
    for k, cost, lookup, draft in passes.rows():
        cells = (str(k), f"{cost:.2f}", _percent(lookup), _percent(draft))
        rows.append(cells[:columns])
    return rows
