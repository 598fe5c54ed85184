"""Texts to vectors, one after another, in chunks between the steps of running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, TypeAlias

from omlx.errors import BadRequest
from omlx.models.catalog.facts import pooling
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.models.pool.texts import Embedding, Encoding
from omlx.server.http.errors import field_error
from omlx.server.request.engine_requests import check_ids
from omlx.server.request.generation import GenerationService

MAX_INPUTS: Final = 2048
Input: TypeAlias = str | tuple[int, ...]
"""A text, or its token ids."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of texts with so many `tokens`, by the model with the id `model`."""

    model: str
    vectors: Sequence[Sequence[float]]
    tokens: int


class EmbeddingService:
    def __init__(self, pool: Pool, generations: GenerationService) -> None:
        self._pool = pool
        self._generations = generations

    async def embed(
        self, model: str | None, inputs: Sequence[Input], dimensions: int | None, param: str
    ) -> Embedded:
        """Return a vector for each text, by a model whose package declares how to pool.

        `dimensions`: how many of each vector, None for all. Raises OmlxError, about the field
        `param` for too many texts and for one that is too long.
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
        """Raises BadRequest for an id outside the vocabulary and for a text longer than the
        context."""
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


def _cut(vector: Sequence[float], dimensions: int | None, *, normalize: bool) -> Sequence[float]:
    """Keep the requested number of dimensions, then scale to length 1 if `normalize`.

    Raises BadRequest for more dimensions than the vector has.
    """
    if dimensions is not None:
        if dimensions > len(vector):
            raise BadRequest("embedding.dimensions", param="dimensions", most=len(vector))
        vector = vector[:dimensions]
    length = sqrt(sum(value * value for value in vector)) if normalize else 0.0
    return [value / length for value in vector] if length else vector
