"""The body of a request to rank documents, and the ranking as JSON. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field

from omlx.errors import Reason
from omlx.server.endpoints.rerank import Reranked
from omlx.server.http.errors import field_error
from omlx.server.request.dialect import Json
from omlx.server.request.fields import Body, Listed, Refusing, Text, read
from omlx.server.request.usage import warnings

MAX_DOCUMENTS: Final = 1_000
_UNSUPPORTED: Final[Mapping[str, Sequence[object]]] = {"rank_fields": ([], ["text"])}
_CUTS: Final = ("max_chunks_per_doc", "max_tokens_per_doc")
"""Fields by which Cohere's API shortens documents."""


class Document(Body):
    text: Text


class RerankRequest(Refusing):
    """The body of POST /v1/rerank and /v2/rerank."""

    model: Text
    query: Text
    documents: Annotated[Listed[Text | Document], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    instruction: Text | None = None

    @property
    def texts(self) -> Sequence[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]

    def body(self, reranked: Reranked) -> Json:
        """The answer: Cohere's `meta`, Jina's `usage`."""
        tokens, texts = reranked.tokens, self.texts
        results = []
        for at in reranked.best(self.top_n):
            result: Json = {"index": at, "relevance_score": reranked.scores[at]}
            if self.return_documents:
                result["document"] = {"text": texts[at]}
            results.append(result)
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": reranked.model,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"tokens": {"input_tokens": tokens, "output_tokens": 0}},
            **warnings(list(self._without_effect())),
        }

    def _without_effect(self) -> Iterator[Reason]:
        given = self.model_extra or {}
        for field in _CUTS:
            if given.get(field) is not None:
                yield Reason("rerank.not_cut", {"field": field})


def parse(body: bytes) -> RerankRequest:
    """Raises BadRequest, naming the field, for an invalid body."""
    request = read(RerankRequest, body)
    request.refuse(_UNSUPPORTED)
    if (count := len(request.documents)) > MAX_DOCUMENTS:
        raise field_error("request.too_many", "documents", count=count, limit=MAX_DOCUMENTS)
    return request
