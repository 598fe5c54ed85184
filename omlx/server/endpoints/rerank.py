"""Documents to scores, one after another, in chunks between the steps of running requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from omlx.errors import BadRequest
from omlx.models.catalog.facts import Reranking, reranking
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.models.pool.texts import Judgement, PairScore
from omlx.server.http.errors import field_error
from omlx.server.request.engine_requests import check_ids
from omlx.server.request.generation import GenerationService
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
