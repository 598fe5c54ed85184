"""The OpenAPI document: the framework's paths, with request bodies from our pydantic models.

Endpoints read bodies themselves, so that errors are in the dialect of the path; the framework does
not see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.ollama.request import ChatRequest as OllamaChatRequest
from omlx.server.dialects.ollama.request import GenerateRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.endpoints.ollama_downloads import PullRequest
from omlx.server.endpoints.ollama_embeddings import EmbeddingsRequest, EmbedRequest
from omlx.server.endpoints.ollama_models import ShowRequest
from omlx.server.endpoints.openai_embeddings_request import EmbeddingRequest
from omlx.server.endpoints.rerank_request import RerankRequest
from omlx.server.endpoints.tokens import DetokenizeRequest, TokenizeRequest
from omlx.server.request.dialect import Json
from omlx.server.request.fields import Body

BODIES: Final[Mapping[str, type[Body]]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/v2/rerank": RerankRequest,
    "/v1/messages": MessageRequest,
    "/v1/messages/count_tokens": MessageRequest,
    "/v1/responses": ResponseRequest,
    "/v1/responses/input_tokens": ResponseRequest,
    "/api/show": ShowRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": GenerateRequest,
    "/api/embed": EmbedRequest,
    "/api/pull": PullRequest,
    "/api/embeddings": EmbeddingsRequest,
    "/v1/models/{name}/prefixes/probe": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_ERRORS: Final[Json] = {
    "4XX": {"description": "What is wrong with the request, in the dialect of the path"},
    "5XX": {"description": "What is wrong here: no room, or the engine is gone"},
}


class Application(FastAPI):
    """Documents the bodies that its endpoints read."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = documented(super().openapi())
        return self.openapi_schema


def documented(document: Json) -> Json:
    """Add request bodies to the framework's document, and replace its validation errors by ours."""
    schemas, shared = models_json_schema(
        [(body, "validation") for body in set(BODIES.values())],
        ref_template="#/components/schemas/{model}",
    )
    references = {body: schema for (body, _), schema in schemas.items()}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"] = {
                "200": operation["responses"].get("200", {"description": "OK"}),
                **_ERRORS,
            }
            if (body := BODIES.get(path)) is not None and "delete" not in operations:
                content = {"application/json": {"schema": references[body]}}
                operation["requestBody"] = {"required": True, "content": content}
    document["components"] = {"schemas": shared["$defs"]}
    return document
