"""Heads of random weights for any family, their drafts beside those of a reference and right at
will; what each trained drafter has to prove; a target that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache

from lab.bench.drive import fixed_costs, flat
from omlx.engine.device.model import cache_maker, parts_of
from omlx.engine.device.sampling import Draw, RowSampler, draw, process
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Draft
from omlx.engine.speculation.drafters.head import HeadDrafter, Shortlist
from omlx.engine.speculation.strategy import Strategy, only
from omlx.engine.step.row import Row
from omlx.engine.types import Limits, Request, Sampling, Speculation
from omlx.errors import Reason
from omlx.models.pool.head import LAYERS, HeadModule
from tests import zoo
from tests.engine.fakes import VOCAB
from tests.engine.harness import (
    LIMITS,
    WARM,
    Bench,
    decode,
    facts,
    loop_of,
    model,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.engine.masks import Rule, Ruled

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


@dataclass
class Watched:
    """A drafter for a family, whose drafts are compared with a `reference`, and then replaced by
    the `answers` by request, wrong where `bad` says so.

    `drafted` and `expected` have the tokens of one draft in `compare_every` of rows without masks,
    where the reference knows them.
    """

    family: str
    drafter: HeadDrafter
    reference: Callable[[Row, int], list[int] | None]
    answers: dict[str, Sequence[int]] = field(default_factory=dict)
    bad: Bad = lambda position: False
    compare_every: int = 1
    rounds: int = 0
    drafted: list[list[int]] = field(default_factory=list)
    expected: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draft = self.drafter.draft
        # Of this instance alone: the engine calls the drafter, which still drafts by itself.
        self.drafter.draft = self.draft  # type: ignore[method-assign]

    def draft(self, row: Row, limit: int) -> Draft | None:
        made = self._draft(row, limit)
        if made is None:
            return None
        self.rounds += 1
        if row.mask is None and self.rounds % self.compare_every == 0:
            wanted = self.reference(row, made.n)
            if wanted is not None:
                self.drafted.append(list(made.tokens or made.array.tolist()))
                self.expected.append(wanted)
        answer = self.answers.get(row.request.id)
        if answer is None:
            return made
        first = len(row.tokens)
        known = list(answer[first - row.prompt_len :][: made.n])
        wrong = [(t + self.bad(first + i)) % zoo.VOCAB_SIZE for i, t in enumerate(known)]
        return Draft(self.drafter.name, len(wrong), tuple(wrong)) if wrong else None

    def bench(
        self, length: int | None = 4, limits: Limits = LIMITS, costs: CostModel | None = None
    ) -> Bench:
        """A bench whose loop drafts by it, and by lookups."""
        heads = {self.drafter.kind: self.drafter}
        return Bench(loop_of(self.family, None, length, limits, costs, heads=heads))

    def by(self, of: Request) -> Request:
        """A request that leaves drafting to it alone."""
        return replace(of, speculation=Speculation(only(self.drafter.kind)))


def watched(family: str, draft_ids: Sequence[int] | None = None) -> Watched:
    """A head of random weights for any family, beside a reference without caches."""
    parts = parts_of(model(family))
    shortlist = None
    if draft_ids is not None:
        shortlist = Shortlist(mx.array(draft_ids, mx.int32), parts.output)
    head = random_head(family)
    drafter = HeadDrafter("mtp", head, parts, zoo.VOCAB_SIZE, shortlist=shortlist)
    return Watched(family, drafter, partial(_from_pairs, drafter, draft_ids))


def _from_pairs(
    drafter: HeadDrafter, draft_ids: Sequence[int] | None, row: Row, n: int
) -> list[int]:
    """Draft once more: the target reads all tokens, the head all pairs, for each token."""
    own, tokens, parts = drafter._rows[row.id], list(row.tokens), drafter.parts
    fresh = model_cache(parts.text)
    states = parts.body(mx.array([tokens[:-1]]), cache=fresh)[:, own.first :]
    sampler = RowSampler(row.request.sampling, zoo.VOCAB_SIZE)
    for _ in range(n):
        embedded = parts.embed(mx.array([tokens[own.first + 1 :]]))
        out = drafter._head(embedded, states, drafter._head.make_cache())[:, -1:]
        place = Draw(sampler, len(tokens), None)
        logits = parts.score(out)[0][:, : zoo.VOCAB_SIZE]
        if draft_ids is not None:
            listed = mx.array([i in draft_ids for i in range(zoo.VOCAB_SIZE)])
            logits = mx.where(listed, logits, -mx.inf)
        tokens.append(int(draw(process(logits, [place]), [place]).item()))
        states = mx.concatenate([states, out], axis=1)
    return tokens[-n:]


def model_cache(text: Any) -> list[Any]:
    if hasattr(text, "make_cache"):
        return text.make_cache()
    return [KVCache() for _ in text.layers]


WRONG: dict[str, Bad] = {
    "right": lambda at: False,
    "noisy": lambda at: at % 7 in (1, 2, 5),
    "broken": lambda at: True,
}


def prove(
    of: Watched,
    sampling: Sampling,
    quality: str,
    max_tokens: int = 60,
    beside: int = 24,
    length: int = 4,
) -> Watched:
    """Prove a row, another of `beside` tokens, and one that continues the first: over prompts in
    chunks, rejections at every place, and a restored prefix.
    """
    first = of.by(request("first", prompt(37), sampling, max_tokens))
    second = of.by(request("second", prompt(13, salt=1), sampling, beside))
    again = of.by(request("again", (*first.tokens, 5, 6, 7), sampling, 20))
    answers = {one.id: plain(of.family, unassisted(one)) for one in (first, second, again)}
    if quality != "random":
        of.answers, of.bad = dict(answers), WRONG[quality]
    bench = of.bench(length, replace(LIMITS, prefill_chunk=16, context_length=2048)).submit(first)
    bench.until(lambda: len(bench.tokens["first"]) >= 8).run(second).run(again)
    assert not bench.failed
    assert bench.tokens == answers
    known, stats = facts(of.family), bench.stats("first")
    assert bench.stats("again").cached_n > 0 or known.uncacheable is not None
    assert stats.proposed > 0, stats
    assert stats.accepted == {"right": stats.proposed, "broken": 0}.get(quality, stats.accepted)
    assert of.drafted == of.expected
    if beside > 24 and known.unbatchable is known.no_uneven is None:
        assert bench.drafting_together
    return of


def prove_batch(of: Watched) -> None:
    """Prove rows that draft in the same passes."""
    rows = [of.by(request(f"r{i}", prompt(9 + 7 * i, salt=i), WARM, 40)) for i in range(3)]
    of.answers = {one.id: plain("llama", unassisted(one)) for one in rows}
    of.bad = lambda at: at % 6 == 0
    costs = fixed_costs(flat, of.drafter.name, 0.02)
    bench = of.bench(None, replace(LIMITS, max_rows=3), costs).run(*rows)
    assert bench.tokens == of.answers
    assert bench.drafting_together
    assert of.drafted == of.expected


def prove_masked(of: Watched, rule: Rule, strategy: Strategy, max_tokens: int = 30) -> None:
    """Prove an answer under a mask, which drafts keep to."""
    one = request("a", prompt(6) * 4, WARM, max_tokens, speculation=Speculation(strategy))
    bench = of.bench().run(replace(one, mask=Ruled(rule)))
    free = replace(unassisted(one), mask=Ruled(rule))
    assert bench.tokens["a"] == decode(model(of.family), free)
    assert bench.stats().drafters[of.drafter.name].proposed > 0


def prove_penalised(of: Watched, strategy: Strategy) -> None:
    """Prove an answer under penalties, for which each drafter of the strategy drafts."""
    penalised = replace(WARM, repetition_penalty=1.3, presence_penalty=0.5)
    one = request("a", prompt(9) * 3, penalised, 40, speculation=Speculation(strategy))
    bench = of.bench().run(one).proven(of.family)
    asked = {of.drafter.name if c.name == of.drafter.kind else c.name for c in strategy.clauses}
    assert asked <= bench.stats().drafters.keys()
    assert bench.stats().proposed > 0


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
