"""The report: tables for the terminal and for a page, and the same as JSON with machine, versions and raw samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from math import inf, isnan

from omlx.bench.report import machine, table, versions
from omlx.bench.result import Json
from omlx.bench.speculation.compare import auto_against_fixed, draft_window, hybrid_against_twin
from omlx.bench.speculation.oracle import RoundCosts, break_even
from omlx.bench.speculation.outcome import Outcome
from omlx.engine.speculation.drafters.ngram import NgramDrafter

FORMAT = "omlx-bench-spec/1"
EVERYTHING = "Everything"
HEAD = (
    *(
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
    ),
    *("errors", "tokens", "request and gates, most"),
)
BOUNDS = (
    "model",
    "workload",
    "mode",
    "proposes of all tokens",
    "with foresight",
    "reached",
    "share alone",
    "reached",
)
LEGEND = """\
Δ: change against plain decoding, median over trials of the ratio within each; spread: its least and greatest value.
tok/s from the first tokens on, until one of several streams ends; wall with the prompt read. cold: the first request
that the mode ever saw. tokens: checksum of all answers; = the same as plain decoding, else the number of answers that
differ and the largest margin between the candidates, in logits. With foresight: a lookup that knows where and how far
to copy, the gain as a share of its own (a draft model that helps makes it more). Share alone: the best window if as
many tokens are proposed right but misses fall anywhere (streams 1). Break-even –: no acceptance would do."""
MISSING = "Fewer trials than asked for (out of time, or answers too short to be timed)"


@dataclass(frozen=True, slots=True)
class Passes:
    """Of one model: rounds by width, and a draft model's pass, in seconds."""

    rounds: RoundCosts
    draft: float | None

    def rows(self) -> Iterator[tuple[int, float, float | None, float | None]]:
        """By window: what the round costs in plain steps, the break-even for a lookup and for the draft model."""
        plain = self.rounds.plain
        for width in self.rounds.widths:
            k, seconds = width - 1, self.rounds.verify(width)
            drafted = None if self.draft is None else break_even(k, seconds + k * self.draft, plain)
            yield k, seconds / plain, break_even(k, seconds, plain), drafted

    def to_json(self) -> Json:
        names = ("window", "plain_steps", "break_even_lookup", "break_even_draft")
        rows = [dict(zip(names, row, strict=True)) for row in self.rows()]
        return {**asdict(self.rounds), "draft_pass": self.draft, "windows": rows}


@dataclass(frozen=True, slots=True)
class Report:
    """`missing` names the cases with fewer trials than asked for. `title` heads it in a page."""

    settings: Json
    models: Json
    outcomes: Seq[Outcome]
    passes: Mapping[str, Passes]
    missing: Seq[str]
    load_before: tuple[float, ...]
    title: str = "Measured"

    def to_json(self) -> Json:
        return {
            "format": FORMAT,
            "machine": machine(self.load_before),
            "versions": versions(),
            "title": self.title,
            "settings": self.settings,
            "models": self.models,
            "passes": {role: passes.to_json() for role, passes in self.passes.items()},
            "results": [outcome.to_json() for outcome in self.outcomes],
            "auto_against_best_fixed": [
                each.to_json() for each in auto_against_fixed(self.outcomes)
            ],
            "hybrid_against_twin": [each.to_json() for each in hybrid_against_twin(self.outcomes)],
            "draft_window": draft_window(self.outcomes),
            "missing": list(self.missing),
            "tables": [
                {"title": title, "rows": [list(cells) for cells in rows]}
                for title, rows in self.tables()
            ],
            "divergences": list(divergences(self.outcomes)),
        }

    def to_text(self) -> str:
        parts = [f"{title}\n\n{table(rows)}" for title, rows in self.tables()]
        parts += [LEGEND] if self.outcomes else []
        parts += [f"First difference: {line}" for line in divergences(self.outcomes)]
        if self.missing:
            parts.append(f"{MISSING}: {'; '.join(self.missing)}")
        return "\n\n".join(parts) + "\n"

    def tables(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """Titles and rows, the head first: everything, gains at a glance, bounds, comparisons, what rounds cost."""
        if self.outcomes:
            yield EVERYTHING, [HEAD, *map(row, self.outcomes)]
        yield from _at_a_glance(self.outcomes)
        if bounds := list(_bounds(self.outcomes)):
            yield "What a perfect lookup could do", [BOUNDS, *bounds]
        for title, found in (
            (
                "auto against the best fixed window, not told which",
                auto_against_fixed(self.outcomes),
            ),
            (
                "The hybrid against its attention twin, both writing the twin's answers",
                hybrid_against_twin(self.outcomes),
            ),
        ):
            if lines := [each.cells for each in found]:
                yield (
                    title,
                    [
                        (
                            "model",
                            "workload",
                            "mode",
                            "gain",
                            "against",
                            "its gain",
                            "within trials",
                        ),
                        *lines,
                    ],
                )
        for role, passes in self.passes.items():
            head = (
                "window",
                "a round in plain steps",
                "break-even of a lookup",
                "of the draft model",
            )
            rows = [
                (str(k), f"{cost:.2f}", _per_cent(a), _per_cent(b))
                for k, cost, a, b in passes.rows()
            ]
            columns = 3 if passes.draft is None else 4
            yield (
                f"From which acceptance on a window pays ({role})",
                [line[:columns] for line in (head, *rows)],
            )


def row(outcome: Outcome) -> tuple[str, ...]:
    case = outcome.case
    return (
        case.role,
        case.workload.name,
        case.mode.name,
        str(case.streams),
        f"{outcome.rate.median:.1f}",
        f"{outcome.wall.median:.2f}",
        _per_cent(outcome.acceptance),
        _change(outcome.gain.median),
        f"×{outcome.gain.least:.2f}–{outcome.gain.most:.2f}",
        _change(1 / outcome.wall_gain.median),
        _change(outcome.cold),
        str(outcome.errors),
        _tokens(outcome),
        outcome.said,
    )


def divergences(outcomes: Seq[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        for each in outcome.divergences:
            place = f"trial {each.trial}, answer {each.answer}, token {each.token}"
            yield f"{outcome.case.name}: {place}, margin {each.margin:.1e}"


def _at_a_glance(outcomes: Seq[Outcome]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Gains, a row a workload and a column a mode; one table a model and number of streams."""
    for role, streams in dict.fromkeys((each.case.role, each.case.streams) for each in outcomes):
        here = [each for each in outcomes if (each.case.role, each.case.streams) == (role, streams)]
        gains = {
            (each.case.workload.name, each.case.mode.name): f"{each.gain.median:.2f}"
            for each in here
        }
        workloads = dict.fromkeys(workload for workload, _ in gains)
        modes = dict.fromkeys(mode for _, mode in gains)
        rows = [
            (workload, *(gains.get((workload, mode), "") for mode in modes))
            for workload in workloads
        ]
        yield (
            f"Times plain decoding, {role}, {streams} stream{'s' * (streams > 1)}",
            [("workload", *modes), *rows],
        )


def _bounds(outcomes: Seq[Outcome]) -> Iterator[tuple[str, ...]]:
    for outcome in outcomes:
        if outcome.bound is None or outcome.reached is None or outcome.allowed is None:
            continue
        if NgramDrafter.kind in outcome.drafters:
            case = (outcome.case.role, outcome.case.workload.name, outcome.case.mode.name)
            foresight = (f"{outcome.bound.speedup:.2f}", _per_cent(outcome.reached.median))
            share_alone = (
                f"{outcome.allowed:.2f}",
                _per_cent(outcome.gain.median / outcome.allowed),
            )
            yield (*case, _per_cent(outcome.bound.share), *foresight, *share_alone)


def _tokens(outcome: Outcome) -> str:
    if outcome.exact:
        return f"{outcome.checksum} ="
    largest = max((each.margin for each in outcome.divergences), default=inf)
    return f"{outcome.checksum} {len(outcome.divergences)} differ, margin ≤ {largest:.0e}"


def _change(ratio: float) -> str:
    return "–" if isnan(ratio) else f"{100 * (ratio - 1):+.0f} %"


def _per_cent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
