"""POST /v1/rerank and /v2/rerank, which differ in no field that is read here."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server.endpoints.rerank import RerankService
from omlx.server.endpoints.rerank_request import parse
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected


class RerankEndpoint:
    def __init__(self, service: RerankService) -> None:
        self._service = service

    async def rerank(self, request: Request) -> Response:
        """The documents by their relevance to the query, by models that were trained for it."""
        body = await read_body(request, parse)
        work = self._service.rerank(body.model, body.query, body.texts, body.instruction)
        return JSONResponse(body.body(await while_connected(request.receive, work)))
