"""Documents to scores, one after another, in chunks between the steps of running requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Self

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Reason
from omlx.models.catalog.facts import Reranking, reranking
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.models.texts import Judgement, PairScore
from omlx.server.http.body import Json, read_body
from omlx.server.http.connection import while_connected
from omlx.server.http.errors import field_error
from omlx.server.request.engine_requests import check_ids
from omlx.server.request.fields import Body, Listed, Refusing, Text
from omlx.server.request.generation import GenerationService
from omlx.server.request.usage import warnings
from omlx.text.template.render import (
    encode_document,
    encode_pair,
    qwen_prompt,
    template_prompt,
)

_ANSWERS = ("yes", "no")
"""The tokens of Qwen3-Reranker."""


@dataclass(frozen=True, slots=True)
class Reranked:
    """The scores of all documents, in their order, by the model with the id `model`; `tokens` were
    read."""

    model: str
    scores: Sequence[float]
    tokens: int

    def best(self, count: int | None) -> Sequence[int]:
        """Return the indices of the most relevant documents, None for all; of equal ones the first
        leads.
        """
        order = sorted(range(len(self.scores)), key=lambda at: (-self.scores[at], at))
        return order[:count]


def _answers(declared: Reranking, served: ServedModel) -> tuple[int, int]:
    """Return the ids of yes and no. Raises BadRequest for a model that has none."""
    ids = declared.tokens
    if ids is None:
        vocabulary = served.tokenizer.get_vocab()
        ids = tuple(vocabulary.get(answer, -1) for answer in _ANSWERS)
    if not all(0 <= token < served.vocab_size for token in ids):
        raise BadRequest("rerank.tokens", param="model", model=served.id)
    return ids


def _judge_of(
    declared: Reranking, served: ServedModel, query: str, instruction: str | None
) -> Callable[[str, int], Judgement | PairScore]:
    """Return what prepares the judgement of a document with an index. Raises BadRequest for an
    instruction that the model cannot be given.
    """
    tokenizer, limit = served.tokenizer, served.context_length
    if served.generates:
        yes, no = _answers(declared, served)
        wanted = instruction or declared.instruction

        def ask(document: str, at: int) -> Judgement:
            if declared.tokens is None:
                prompt = qwen_prompt(query, document, wanted)
            else:
                prompt = template_prompt(tokenizer, query, document, wanted)
            return Judgement(encode_document(tokenizer, prompt, limit, at), yes, no)

        return ask
    if instruction is not None:
        raise field_error("request.unsupported", "instruction")

    def classify(document: str, at: int) -> PairScore:
        tokens, types = encode_pair(tokenizer, query, document, limit, at)
        return PairScore(tokens, types if declared.segments else [0] * len(tokens))

    return classify


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

    @classmethod
    def parse(cls, content: bytes) -> Self:
        request = super().parse(content)
        request.refuse(_UNSUPPORTED)
        if (count := len(request.documents)) > MAX_DOCUMENTS:
            raise field_error("request.too_many", "documents", count=count, limit=MAX_DOCUMENTS)
        return request

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


class RerankEndpoint:
    def __init__(self, pool: Pool, generations: GenerationService) -> None:
        self._pool = pool
        self._generations = generations

    async def rerank(self, request: Request) -> Response:
        """The documents by their relevance to the query, by models that were trained for it."""
        body = await read_body(request, RerankRequest.parse)
        work = self._score(body.model, body.query, body.texts, body.instruction)
        return JSONResponse(body.body(await while_connected(request.receive, work)))

    async def _score(
        self, model: str | None, query: str, documents: Sequence[str], instruction: str | None
    ) -> Reranked:
        """Score each document by a model that was trained for it. Raises OmlxError, naming the
        document that is too long; all are encoded before the first is computed.
        """
        entry = self._pool.resolve(model)
        declared = await asyncio.to_thread(reranking, entry)
        lease = await self._pool.lease(entry.id)
        try:
            served = lease.served
            judge = _judge_of(declared, served, query, instruction)
            judgements = []
            for at, document in enumerate(documents):
                work, length = partial(judge, document, at), len(query) + len(document)
                judgement = await self._generations.run_text(served.id, work, length)
                check_ids(judgement.tokens, served.vocab_size, f"documents[{at}]")
                judgements.append(judgement)
            for judgement in judgements:
                await self._pool.read_text(served, judgement)
            scores = [judgement.score for judgement in judgements]
            return Reranked(served.id, scores, sum(len(each.tokens) for each in judgements))
        finally:
            lease.release()
