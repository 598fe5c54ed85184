"""Documents to scores, one after another, in chunks between the steps of running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from omlx.errors import BadRequest
from omlx.models.package.reranking import Reranking, reranking
from omlx.models.pool.judgement import Judgement
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import ServedModel
from omlx.server.generation import GenerationService
from omlx.text.rerank_prompt import encode_document, qwen_prompt, template_prompt

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


class RerankService:
    def __init__(self, pool: Pool, generations: GenerationService) -> None:
        self._pool = pool
        self._generations = generations

    async def rerank(
        self, model: str | None, query: str, documents: Sequence[str], instruction: str | None
    ) -> Reranked:
        """Score each document by a model that was trained for it. Raises OmlxError, naming the
        document that is too long; all are encoded before the first is computed.
        """
        entry = self._pool.resolve(model)
        declared = await asyncio.to_thread(reranking, entry.path, entry.id)
        lease = await self._pool.lease(entry.id)
        try:
            served = lease.served
            yes, no = _answers(declared, served)
            instruction = instruction or declared.instruction
            encoded = []
            for at, document in enumerate(documents):
                work = partial(_encode, declared, served, query, document, instruction, at)
                length = len(query) + len(document)
                encoded.append(await self._generations.run_text(served.id, work, length))
            scores = []
            for tokens in encoded:
                judgement = Judgement(tokens, yes, no)
                await self._pool.read_text(served, judgement)
                scores.append(judgement.score)
            return Reranked(served.id, scores, sum(map(len, encoded)))
        finally:
            lease.release()


def _answers(declared: Reranking, served: ServedModel) -> tuple[int, int]:
    """Return the ids of yes and no. Raises BadRequest for a model that has none."""
    ids = declared.tokens
    if ids is None:
        vocabulary = served.tokenizer.get_vocab()
        ids = tuple(vocabulary.get(answer, -1) for answer in _ANSWERS)
    if not all(0 <= token < served.vocab_size for token in ids):
        raise BadRequest("rerank.tokens", param="model", model=served.id)
    return ids


def _encode(
    declared: Reranking,
    served: ServedModel,
    query: str,
    document: str,
    instruction: str | None,
    at: int,
) -> list[int]:
    if declared.tokens is None:
        prompt = qwen_prompt(query, document, instruction)
    else:
        prompt = template_prompt(served.tokenizer, query, document, instruction)
    return encode_document(served.tokenizer, prompt, served.context_length, at)
