"""What the benchmark page shows: the running one, a stored one, another to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.errors import Reason
from omlx.speed.points import SIZES
from omlx.trial.result_store import StoredResult

from ..settings.view import Json

MEASURES = ("prefill", "plain", "drafted")
"""Rates of a row, as the report names them."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A stored run. `key` names it in addresses; `stale` says why its figures may not hold."""

    key: str
    at: float
    version: str
    machine: str
    record: Json
    stale: Sequence[Reason] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A rate, in tokens per second, and the length of its bar in percent. `old`: of the other run.

    `tokens` are those of the prompt, `measure` is one of `MEASURES`.
    """

    tokens: int
    measure: str
    rate: float
    share: float
    old: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """The bars of prefill (`streams` 0), or of decoding with so many streams."""

    streams: int
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: figures of the run, and of the other run at the same point, if any."""

    now: Json
    old: Json | None


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """The part that is refreshed. `running` is the report of a benchmark that runs, of any model;
    `ended` that of one that failed or was stopped in this process, of this model.
    """

    model: str
    running: Json | None = None
    ended: Json | None = None
    runs: Sequence[RunView] = ()
    shown: RunView | None = None
    other: RunView | None = None

    @property
    def rows(self) -> list[Row]:
        if self.shown is None:
            return []
        return [Row(row, self._old(row)) for row in self.shown.record["rows"]]

    @property
    def charts(self) -> list[Chart]:
        charts = [_chart(0, self.rows, MEASURES[:1])]
        for streams in sorted({row.now["streams"] for row in self.rows}):
            here = [row for row in self.rows if row.now["streams"] == streams]
            charts.append(_chart(streams, here, MEASURES[1:]))
        return [chart for chart in charts if chart.bars]

    def _old(self, row: Json) -> Json | None:
        rows: list[Json] = [] if self.other is None else self.other.record["rows"]
        place = (row["tokens"], row["streams"])
        return next((old for old in rows if (old["tokens"], old["streams"]) == place), None)


@dataclass(frozen=True, slots=True)
class BenchmarkView:
    """`query` names the runs that a person has chosen, for the address of the part."""

    models: Sequence[str]
    outcome: OutcomeView
    query: str = ""
    sizes: Sequence[int] = SIZES


def run_view(result: StoredResult, stale: Sequence[Reason] = ()) -> RunView:
    conditions = result.conditions
    version = conditions.versions.get("omlx", "")
    key = f"{result.at:.3f}"
    return RunView(key, result.at, version, conditions.machine, dict(result.record), stale)


def choose(
    runs: Sequence[RunView], key: str | None, other: str | None
) -> tuple[RunView | None, RunView | None]:
    """Return the run of a key, by default the newest, and the one to compare it with.

    By default that is the newest before it that another version measured, else none.
    """
    by_key = {run.key: run for run in runs}
    shown = by_key.get(key or "") or next(iter(runs), None)
    if shown is None or other == "":
        return shown, None
    earlier = (run for run in runs if run.at < shown.at and run.version != shown.version)
    return shown, by_key.get(other or "") or next(earlier, None)


def rate_of(row: Json | None, measure: str) -> float | None:
    """Return tokens per second of a measure; None where it was not measured."""
    value = None if row is None else row[measure]
    if isinstance(value, dict):
        value = value["median"]
    return None if value is None else float(value)


def _chart(streams: int, rows: Sequence[Row], measures: Sequence[str]) -> Chart:
    bars = []
    for row in rows:
        for measure in measures:
            for record, old in ((row.now, False), (row.old, True)):
                rate = rate_of(record, measure)
                if rate is not None:
                    bars.append((row.now["tokens"], measure, rate, old))
    best = max((rate for _, _, rate, _ in bars), default=0.0) or 1.0
    return Chart(
        streams,
        [
            Bar(tokens, measure, rate, round(100 * rate / best, 1), old)
            for tokens, measure, rate, old in bars
        ],
    )
