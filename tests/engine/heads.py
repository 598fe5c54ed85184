"""Heads for tests: random ones for any family, ones that are right at will, and a target that
counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker, parts_of
from omlx.engine.device.sampling import Draw, RowSampler, draw, process
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Draft
from omlx.engine.speculation.drafters.head import HeadDrafter, Shortlist
from omlx.engine.step.row import Row
from omlx.engine.types import Limits
from omlx.errors import Reason
from omlx.models.pool.head import LAYERS, HeadModule
from tests import zoo
from tests.engine.fakes import VOCAB
from tests.engine.harness import LIMITS, facts, model

Bad = Callable[[int], bool]
"""Whether a draft is wrong at a position."""


class PlainHead(nn.Module):
    """One layer of attention over embeddings and hidden states, for any width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.project = nn.Linear(width, width)

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: list[Any]) -> mx.array:
        x = self.fc(mx.concatenate([embedded, hidden], axis=-1))
        queries = self.project(x)[:, None]
        keys, values = cache[0].update_and_fetch(queries, queries)
        mask = "causal" if x.shape[1] > 1 else None
        attended = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.1, mask=mask)
        return x + attended[:, 0]

    def make_cache(self) -> list[Any]:
        return [KVCache()]


def random_head(family: str, layers: int = 1) -> Any:
    """A head of random weights: of the family's own layers where it can have one."""
    parts = parts_of(model(family))
    mx.random.seed(5)
    head = (
        HeadModule(family, parts.text.args, layers)
        if family in LAYERS
        else PlainHead(parts.embed(mx.array([[0]])).shape[-1])
    )
    mx.eval(head.parameters())
    return head


class Observed(HeadDrafter):
    """A head of random weights beside a reference without caches: `drafted` and `expected` have
    the tokens of each draft. With an `answer` by request its drafts are replaced by the answer,
    wrong where `bad` says so.
    """

    def __init__(
        self,
        family: str,
        answers: dict[str, Sequence[int]] | None = None,
        bad: Bad = lambda position: False,
        *,
        compares: bool = False,
        draft_ids: Sequence[int] | None = None,
    ) -> None:
        parts = parts_of(model(family))
        shortlist = None
        if draft_ids is not None:
            shortlist = Shortlist(mx.array(draft_ids, mx.int32), parts.output)
        head = random_head(family)
        super().__init__("mtp", head, parts, zoo.VOCAB_SIZE, shortlist=shortlist)
        self._draft_ids = draft_ids
        self.drafted: list[list[int]] = []
        self.expected: list[list[int]] = []
        self._answers = answers or {}
        self._bad = bad
        self._compares = compares

    def draft(self, row: Row, limit: int) -> Draft | None:
        made = super().draft(row, limit)
        if made is None:
            return None
        if self._compares:
            self.drafted.append(list(made.tokens or made.array.tolist()))
            self.expected.append(self._reference(row, made.n))
        answer = self._answers.get(row.request.id)
        if answer is None:
            return made
        first = len(row.tokens)
        known = list(answer[first - row.prompt_len :][: made.n])
        if not known:
            return None
        wrong = [t + self._bad(first + i) for i, t in enumerate(known)]
        return Draft(self.name, len(wrong), tuple(t % zoo.VOCAB_SIZE for t in wrong))

    def _reference(self, row: Row, n: int) -> list[int]:
        """Draft once more: the target reads all tokens, the head all pairs, for each token."""
        own, tokens = self._rows[row.id], list(row.tokens)
        fresh = model_cache(self.parts.text)
        states = self.parts.body(mx.array([tokens[:-1]]), cache=fresh)[:, own.first :]
        sampler = RowSampler(row.request.sampling, zoo.VOCAB_SIZE)
        for _ in range(n):
            embedded = self.parts.embed(mx.array([tokens[own.first + 1 :]]))
            out = self._head(embedded, states, self._head.make_cache())[:, -1:]
            place = Draw(sampler, len(tokens), None)
            logits = self.parts.score(out)[0][:, : zoo.VOCAB_SIZE]
            if self._draft_ids is not None:
                listed = mx.array([i in self._draft_ids for i in range(zoo.VOCAB_SIZE)])
                logits = mx.where(listed, logits, -mx.inf)
            tokens.append(int(draw(process(logits, [place]), [place]).item()))
            states = mx.concatenate([states, out], axis=1)
        return tokens[-n:]


def model_cache(text: Any) -> list[Any]:
    if hasattr(text, "make_cache"):
        return text.make_cache()
    return [KVCache() for _ in text.layers]


def loop_with(
    family: str,
    drafter: HeadDrafter | None = None,
    length: int | None = 4,
    limits: Limits = LIMITS,
    costs: CostModel | None = None,
) -> EngineLoop:
    """A loop that drafts by a head, of random weights unless `drafter` has another, and lookups."""
    limits = replace(limits, num_draft_tokens=length)
    return build_loop(
        model(family),
        zoo.VOCAB_SIZE,
        limits,
        heads={"mtp": drafter or head_of(model(family), random_head(family), zoo.VOCAB_SIZE)},
        cost_model=costs,
        facts=facts(family),
    )


def head_of(target: nn.Module, head: Any, vocab_size: int) -> HeadDrafter | Reason:
    return HeadDrafter.of("mtp", head, target, cache_maker(target), vocab_size)


class CountingText(nn.Module):
    """A text model that says n + 1 after n: its hidden state is the embedding of n + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.model = _CountingBody()

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        return self.model.embed_tokens.as_linear(self.model(tokens, cache=cache))

    @property
    def layers(self) -> list[None]:
        return [None]


class _CountingBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, VOCAB)
        self.embed_tokens.weight = 4.0 * mx.eye(VOCAB)

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        embedded = self.embed_tokens(tokens)
        cache[0].update_and_fetch(embedded[:, None], embedded[:, None])
        return mx.roll(embedded, 1, axis=-1)


class CountingHead:
    """Right where a token is paired with the hidden state before it, in text that counts."""

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: list[Any]) -> mx.array:
        cache[0].update_and_fetch(embedded[:, None], embedded[:, None])
        aligned = mx.all(embedded == hidden, axis=-1, keepdims=True)
        return mx.where(aligned, mx.roll(embedded, 1, axis=-1), embedded)

    def make_cache(self) -> list[Any]:
        return [KVCache()]
