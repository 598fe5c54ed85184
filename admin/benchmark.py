"""The benchmark page: choose a model, run, watch, compare, export.

API, below `/admin/api/models/{model}/benchmark`:

    GET  …           reports: of the running benchmark (any model) and the stored ones
    POST …           begin; answers at once
    POST …/stop      stop the running benchmark
    GET  …/export    a stored run as a file: `format` json or md, `run` its key, default newest
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omlx.errors import Conflict, NotFound, Reason
from omlx.measure.benchmark import SIZES, Benchmark, prompt_lengths
from omlx.measure.results import stale
from omlx.measure.runner import Measurements, State
from omlx.models.pool.pool import Pool
from omlx.server.http.transport import Json
from omlx.server.request.fields import Body

from .benchmark_view import MEASURES, rate_of, table
from .models.list_page import SECTION
from .models.model_snapshot import checkpoint_facts, suggested
from .web import formats
from .web.addresses import BENCHMARK, PARTS
from .web.pages import Pages, page
from .web.preferences import language_of


class BenchmarkRequest(Body):
    """`longest` bounds the prompts, in tokens."""

    longest: Annotated[int, Field(ge=SIZES[0], le=SIZES[-1], strict=True)] = SIZES[-1]


class StopRequest(Body):
    id: str | None = None


class ExportQuery(Body):
    format: Literal["json", "md"] = "json"
    run: str | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkPage:
    pool: Pool
    measurements: Measurements

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(BENCHMARK, page("benchmark/page.html", self._view, SECTION))
        pages.part(
            f"{PARTS}/benchmark/{{name:path}}", page("benchmark/outcome.html", self._outcome)
        )
        one = "/models/{name:path}/benchmark"
        api.add_api_route(one, self.show, methods=["GET"])
        api.add_api_route(one, self.begin, methods=["POST"])
        api.add_api_route(f"{one}/stop", self.stop, methods=["POST"])
        api.add_api_route(f"{one}/export", self.export, methods=["GET"])

    async def show(self, request: Request, name: str) -> Response:
        outcome = await self.outcome(self._id(name), None, "")
        runs = [to_json(run) for run in outcome.runs]
        newest, ended = self.measurements.newest(Benchmark), outcome.ended
        if newest is not None and newest.state is State.DONE and newest.model == outcome.model:
            report = newest.report()  # not among the runs where the disk is full
            ended = None if any(run["id"] == report["id"] for run in runs) else report
        return JSONResponse({"running": outcome.running, "ended": ended, "runs": runs})

    async def begin(self, request: Request, name: str) -> Response:
        asked = BenchmarkRequest.parse(await request.body() or b"{}")
        benchmark = Benchmark(self.pool.resolve(self._id(name)).id, asked.longest)
        self.measurements.begin(benchmark)
        return JSONResponse(benchmark.report(), 202)

    async def stop(self, request: Request, name: str) -> Response:
        """Stop the running benchmark, or only the one with an `id`; answers once stopped."""
        asked = StopRequest.parse(await request.body() or b"{}")
        running = self.measurements.running(Benchmark)
        if running is None or asked.id not in (None, running.report()["id"]):
            raise Conflict("benchmark.not_running")
        await self.measurements.stop(running)
        return JSONResponse(running.report())

    async def export(self, request: Request, name: str) -> Response:
        query = ExportQuery.of_query(request.query_params)
        run = await self.run(self._id(name), query.run)
        file = f'attachment; filename="omlx-benchmark.{query.format}"'
        headers = {"Content-Disposition": file}
        if query.format == "json":
            return JSONResponse(to_json(run), headers=headers)
        text = to_markdown(run, language_of(request))
        return PlainTextResponse(text, headers=headers, media_type="text/markdown")

    async def _view(self, request: Request) -> BenchmarkView:
        """Raises NotFound for an unknown model."""
        pool, query = self.pool, request.query_params
        model, outcome = query.get("model") or self._first(), OutcomeView("")
        lengths: Sequence[tuple[int, int]] = ()
        if model is not None:
            outcome = await self._outcome(request, model)
            lengths = await asyncio.to_thread(self._lengths, outcome.model)
        chosen = {name: query[name] for name in ("run", "with") if name in query}
        models = [entry.id for entry in pool.models]
        return BenchmarkView(models, outcome, lengths, urlencode(chosen))

    def _lengths(self, model: str) -> Sequence[tuple[int, int]]:
        """Return each size to choose with its length in tokens, cut to the context. Reads files."""
        entry, limit = self.pool.entry(model), None
        if entry.usable:
            limit = self.pool.speculation(model).settings.max_context
        context = checkpoint_facts(entry).context(limit) or 2 * SIZES[-1]
        return list(zip(SIZES, prompt_lengths(context), strict=False))

    async def _outcome(self, request: Request, model: str | None = None) -> OutcomeView:
        query, name = request.query_params, model or request.path_params["name"]
        return await self.outcome(self._id(name), query.get("run"), query.get("with"))

    def _id(self, name: str) -> str:
        """Raises NotFound."""
        return self.pool.entry(name).id

    def _first(self) -> str | None:
        """The model being measured, else the last used, else the suggested."""
        pool, running = self.pool, self.measurements.running(Benchmark)
        if running is not None:
            return running.model
        if pool.last_used is not None:
            return pool.last_used.id
        return suggested(pool.models, pool.limit_bytes)

    async def runs(self, model: str) -> list[RunView]:
        """Return the stored runs of a model, newest first."""
        results = await asyncio.to_thread(self.measurements.store.runs, model)
        now = await self.measurements.conditions([model])
        return [
            RunView(
                f"{result.at:.3f}",
                result.at,
                result.conditions.versions.get("omlx", ""),
                result.conditions.machine,
                dict(result.record),
                stale(result.conditions, now),
            )
            for result in results
        ]

    async def outcome(self, model: str, key: str | None, other: str | None) -> OutcomeView:
        """Return the outcome of a model; `key` and `other` select runs."""
        # Before its run is read, which is stored before it ends.
        newest = self.measurements.newest(Benchmark)
        running = ended = None
        if newest is not None and not newest.state.over:
            running = newest.report()
        elif newest is not None and newest.model == model and newest.state is not State.DONE:
            ended = newest.report()
        runs = await self.runs(model)
        shown, compared = choose(runs, key, other)
        return OutcomeView(model, running, ended, runs, shown, compared)

    async def run(self, model: str, key: str | None) -> RunView:
        """Return a stored run, by default the newest. Raises NotFound."""
        for run in await self.runs(model):
            if key in (None, run.key):
                return run
        raise NotFound("benchmark.no_result", model=model)


@dataclass(frozen=True, slots=True)
class RunView:
    """A stored run. `key` is its name in URLs; `stale` lists why the figures may not hold."""

    key: str
    at: float
    version: str
    machine: str
    record: Json
    stale: Sequence[Reason] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A rate in tokens per second, with the bar's length in percent. `old`: of the compared run.

    `tokens`: of the prompt; `measure`: of `MEASURES`.
    """

    tokens: int
    measure: str
    rate: float
    share: float
    old: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars of prefill (`streams` 0), or of decoding with `streams` streams."""

    streams: int
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of the run and, if any, of the compared run at the same point."""

    now: Json
    old: Json | None


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """The refreshed part. `running`: report of a running benchmark, of any model.

    `ended`: report of this model's benchmark that failed or was stopped in this process.
    """

    model: str
    running: Json | None = None
    ended: Json | None = None
    runs: Sequence[RunView] = ()
    shown: RunView | None = None
    other: RunView | None = None

    @property
    def rows(self) -> list[Row]:
        now: list[Json] = [] if self.shown is None else self.shown.record["rows"]
        old: list[Json] = [] if self.other is None else self.other.record["rows"]
        compared = {(row["tokens"], row["streams"]): row for row in old}
        return [Row(row, compared.get((row["tokens"], row["streams"]))) for row in now]

    @property
    def charts(self) -> list[Chart]:
        charts = [_chart(0, self.rows, MEASURES[:1])]
        for streams in sorted({row.now["streams"] for row in self.rows}):
            here = [row for row in self.rows if row.now["streams"] == streams]
            charts.append(_chart(streams, here, MEASURES[1:]))
        return [chart for chart in charts if chart.bars]


@dataclass(frozen=True, slots=True)
class BenchmarkView:
    """`lengths`: sizes of prompts, with their tokens in the model's context.

    `query` holds the chosen runs, for the URL of the part.
    """

    models: Sequence[str]
    outcome: OutcomeView
    lengths: Sequence[tuple[int, int]] = ()
    query: str = ""


def choose(
    runs: Sequence[RunView], key: str | None, other: str | None
) -> tuple[RunView | None, RunView | None]:
    """Return the run of `key`, by default the newest, and a run to compare.

    The latter defaults to the newest earlier run of another version, if any; `other` "" disables
    the comparison.
    """
    by_key = {run.key: run for run in runs}
    shown = by_key.get(key or "") or next(iter(runs), None)
    if shown is None or other == "":
        return shown, None
    earlier = (run for run in runs if run.at < shown.at and run.version != shown.version)
    return shown, by_key.get(other or "") or next(earlier, None)


def _chart(streams: int, rows: Sequence[Row], measures: Sequence[str]) -> Chart:
    bars = [
        (row.now["tokens"], measure, rate, old)
        for row in rows
        for measure in measures
        for record, old in ((row.now, False), (row.old, True))
        if (rate := rate_of(record, measure)) is not None
    ]
    best = max((rate for _, _, rate, _ in bars), default=0.0) or 1.0
    return Chart(streams, [Bar(*bar[:3], round(100 * bar[2] / best, 1), bar[3]) for bar in bars])


def to_json(run: RunView) -> Json:
    return {"at": run.at, "omlx": run.version, "machine": run.machine, **run.record}


def to_markdown(run: RunView, language: str) -> str:
    """Return a heading, the conditions, and a table; rates in tokens per second."""
    heads, *rows = table(run.record, language)
    lines = [
        f"# {run.record['model'].replace('|', '')}",
        "",
        f"omlx {run.version} · {run.machine} · {formats.moment(run.at)}",
        "",
        _line(heads),
        _line(["---:"] * len(heads)),
    ]
    lines += map(_line, rows)
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
