"""Embeddings and rankings: texts to vectors and scores, in chunks between engine steps."""

from __future__ import annotations

import asyncio
import struct
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from time import monotonic
from typing import Annotated, Final, Literal, Self, TypeAlias

from fastapi import Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Reason
from omlx.models.catalog.facts import Reranking, pooling, reranking
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.models.texts import Embedding, Encoding, Judgement, PairScore
from omlx.server.dialects.ollama.fields import Configured
from omlx.server.dialects.openai.completions_request import Given, separate
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json, read_body, while_connected
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

MAX_INPUTS: Final = 2048
Input: TypeAlias = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of texts with `tokens` tokens in total, by the model with id `model`."""

    model: str
    vectors: Sequence[Sequence[float]]
    tokens: int


def _cut(vector: Sequence[float], dimensions: int | None, *, normalize: bool) -> Sequence[float]:
    """Keep `dimensions` components, then scale to length 1 if `normalize`.

    Raises BadRequest for more dimensions than the vector has.
    """
    if dimensions is not None:
        if dimensions > len(vector):
            raise BadRequest("embedding.dimensions", param="dimensions", most=len(vector))
        vector = vector[:dimensions]
    length = sqrt(sum(value * value for value in vector)) if normalize else 0.0
    return [value / length for value in vector] if length else vector


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings."""

    model: Text
    input: Given
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        return separate(self.input)

    def body(self, embedded: Embedded) -> Json:
        data = [
            {"object": "embedding", "index": i, "embedding": self._encoded(vector)}
            for i, vector in enumerate(embedded.vectors)
        ]
        usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
        return {"object": "list", "data": data, "model": embedded.model, "usage": usage}

    def _encoded(self, vector: Sequence[float]) -> list[float] | str:
        if self.encoding_format == "base64":
            return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return list(vector)


_NS: Final = 1_000_000_000


class EmbedRequest(Configured):
    """The body of POST /api/embed. Texts beyond the context are refused, even with `truncate`."""

    input: str | Listed[Text] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None

    @property
    def inputs(self) -> Sequence[str]:
        texts = [self.input] if isinstance(self.input, str) else self.input or []
        return [text for text in texts if text]


class EmbeddingsRequest(Configured):
    """The body of POST /api/embeddings."""

    prompt: str | None = None


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


class TextEndpoints:
    """Embeddings and rankings. Without a text, Ollama's embeddings load the model."""

    def __init__(self, pool: Pool, generations: GenerationService) -> None:
        self._pool = pool
        self._generations = generations

    async def embeddings(self, request: Request) -> Response:
        """Return a vector per text, by models whose packages declare how to pool."""
        body = await read_body(request, EmbeddingRequest.parse)
        work = self._embed(body.model, body.inputs, body.dimensions, "input")
        return JSONResponse(body.body(await while_connected(request.receive, work)))

    async def embed(self, request: Request) -> Response:
        """Return a vector per text, in Ollama's dialect."""
        started_at = monotonic()
        body = await read_body(request, EmbedRequest.parse)
        embedded = await self._embedded(request, body, body.inputs, body.dimensions, "input")
        answer: Json = {
            "model": embedded.model,
            "embeddings": embedded.vectors,
            "total_duration": round((monotonic() - started_at) * _NS),
            "load_duration": 0,
            "prompt_eval_count": embedded.tokens,
        }
        return JSONResponse(answer | warnings(body.option_warnings()))

    async def embed_one(self, request: Request) -> Response:
        """Return the vector of a single text, in Ollama's older dialect."""
        body = await read_body(request, EmbeddingsRequest.parse)
        texts = [body.prompt] if body.prompt else []
        embedded = await self._embedded(request, body, texts, None, "prompt")
        return JSONResponse({"embedding": next(iter(embedded.vectors), [])})

    async def _embedded(
        self,
        request: Request,
        body: Configured,
        texts: Sequence[str],
        dimensions: int | None,
        param: str,
    ) -> Embedded:
        keep_s, model = body.keep_s, self._pool.resolve(body.id).id
        work = self._embed(model, texts, dimensions, param)
        embedded = await while_connected(request.receive, work)
        if keep_s is not None:
            self._pool.residents.keep(model, keep_s)
        return embedded

    async def _embed(
        self, model: str | None, inputs: Sequence[Input], dimensions: int | None, param: str
    ) -> Embedded:
        """Return a vector per text, by a model whose package declares how to pool.

        `dimensions`: components per vector, None for all. Raises OmlxError about the field `param`
        for too many or too long texts.
        """
        if len(inputs) > MAX_INPUTS:
            raise field_error("request.too_many", param, count=len(inputs), limit=MAX_INPUTS)
        entry = self._pool.resolve(model)
        declared = await asyncio.to_thread(pooling, entry)
        lease = await self._pool.lease(entry.id)
        try:
            fields = [f"{param}[{at}]" for at in range(len(inputs))]
            if len(inputs) == 1:
                fields = [param]
            named = zip(inputs, fields, strict=True)
            texts = [await self._ids(text, lease.served, field) for text, field in named]
            kind = Embedding if lease.served.generates else Encoding
            vectors = []
            for ids in texts:
                embedding = kind(ids, declared.mode)
                await self._pool.read_text(lease.served, embedding)
                vectors.append(_cut(embedding.vector, dimensions, normalize=declared.normalize))
            return Embedded(lease.served.id, vectors, tokens=sum(map(len, texts)))
        finally:
            lease.release()

    async def _ids(self, text: Input, served: ServedModel, param: str) -> tuple[int, ...]:
        """Return token ids. Raises BadRequest for unknown ids and for a text longer than the
        context.
        """
        if isinstance(text, str):
            encoded = await self._generations.tokenize(
                served.id, text, special=True, limit=served.context_length, param=param
            )
            ids = tuple(encoded)
        else:
            ids = text
        check_ids(ids, served.vocab_size, param)
        if len(ids) > served.context_length:
            raise field_error(
                "embedding.too_long", param, tokens=len(ids), limit=served.context_length
            )
        return ids

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
