"""API of benchmarks, below `/admin/api/models/{model}/benchmark`.

GET  …           the report of the running benchmark, of any model, and the stored ones
POST …           begin; answers at once
POST …/stop      stop the one that runs
GET  …/export    a stored run as a file: `format` json or md, `run` its key, by default the newest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omlx.server.fields import Body, read, read_query
from omlx.speed.points import SIZES
from omlx.speed.report import report

from ..preferences import language_of
from .export import to_json, to_markdown
from .service import BenchmarkService


class BenchmarkRequest(Body):
    """`longest` bounds the prompts, in tokens."""

    longest: Annotated[int, Field(ge=SIZES[0], le=SIZES[-1], strict=True)] = SIZES[-1]


class ExportQuery(Body):
    format: Literal["json", "md"] = "json"
    run: str | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkApi:
    service: BenchmarkService

    def register(self, router: APIRouter) -> None:
        one = "/models/{name:path}/benchmark"
        router.add_api_route(one, self.show, methods=["GET"])
        router.add_api_route(one, self.begin, methods=["POST"])
        router.add_api_route(f"{one}/stop", self.stop, methods=["POST"])
        router.add_api_route(f"{one}/export", self.export, methods=["GET"])

    async def show(self, request: Request, name: str) -> Response:
        outcome = await self.service.outcome(self._id(name), None, "")
        runs = [to_json(run) for run in outcome.runs]
        record = {"running": outcome.running, "ended": outcome.ended, "runs": runs}
        return JSONResponse(record)

    async def begin(self, request: Request, name: str) -> Response:
        asked = read(BenchmarkRequest, await request.body() or b"{}")
        benchmark = self.service.benchmarks.begin(self._id(name), asked.longest)
        return JSONResponse(report(benchmark), 202)

    async def stop(self, request: Request, name: str) -> Response:
        """Answers once it has stopped."""
        await request.body()
        return JSONResponse(report(await self.service.benchmarks.stop()))

    async def export(self, request: Request, name: str) -> Response:
        query = read_query(ExportQuery, request.query_params)
        run = await self.service.run(self._id(name), query.run)
        file = f'attachment; filename="omlx-benchmark.{query.format}"'
        headers = {"Content-Disposition": file}
        if query.format == "json":
            return JSONResponse(to_json(run), headers=headers)
        text = to_markdown(run, language_of(request))
        return PlainTextResponse(text, headers=headers, media_type="text/markdown")

    def _id(self, name: str) -> str:
        """Raises NotFound."""
        return self.service.pool.entry(name).id
