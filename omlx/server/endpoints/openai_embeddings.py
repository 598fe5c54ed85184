"""POST /v1/embeddings."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server.endpoints import openai_embeddings_request as embedding_request
from omlx.server.endpoints.embedding import EmbeddingService
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected


class EmbeddingEndpoint:
    def __init__(self, service: EmbeddingService) -> None:
        self._service = service

    async def embeddings(self, request: Request) -> Response:
        """A vector for each text, by models whose packages declare how to pool."""
        body = await read_body(request, embedding_request.parse)
        work = self._service.embed(body.model, body.inputs, body.dimensions, "input")
        return JSONResponse(body.body(await while_connected(request.receive, work)))
