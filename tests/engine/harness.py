"""Runs requests through an EngineLoop with `check` after every step; a naive reference beside it.

`Bench` drives one loop: submit at any step, cancel, run until something holds. `plain` is the
reference: one token at a time on a fresh cache, one request, no engine but its sampling function.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from omlx.engine.build import build_loop
from omlx.engine.device.facts import ModelFacts, facts_of, probed
from omlx.engine.device.model import cache_maker
from omlx.engine.device.sampling import Draw, RowSampler, draw, permit, process
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import DRAFT, OFF
from omlx.engine.step.plan import Plan, Window
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Limits,
    PrefillProgress,
    Request,
    Sampling,
    Speculation,
    TokensCommitted,
    run_through,
)
from omlx.records import RequestStats
from tests import zoo
from tests.lanes import few

GREEDY = Sampling(temperature=0.0)
WARM = Sampling(temperature=0.8, top_p=0.95, seed=11)
LIMITS = Limits(context_length=512, num_draft_tokens=4, block_tokens=8)
KINDS = tuple(name for name in zoo.MAIN_NAMES if name not in ("gemma3", "qwen2_vl"))
"""The families whose caches differ: all but the wrappers."""
HEATED = [
    *((name, GREEDY) for name in KINDS),
    *((name, WARM) for name in ("llama", "gemma3_text", "recurrent_gemma")),
]
"""Every kind at temperature 0, some above it."""
FEW_HEATED = few(
    HEATED,
    ("llama", WARM),
    ("gemma3_text", GREEDY),
    ("recurrent_gemma", WARM),
)
MAX_STEPS = 1200
T = TypeVar("T")


@functools.cache
def model(name: str, seed: int = 0) -> nn.Module:
    """A tiny model, built once."""
    return zoo.build(name, seed)


@functools.cache
def facts(name: str) -> ModelFacts:
    """What an engine must know of the model `name`; its thirteen passes are run once."""
    make_cache = cache_maker(model(name))
    known = facts_of(model(name), zoo.VOCAB_SIZE, make_cache)
    return run_through(probed(known, model(name), make_cache))


@functools.cache
def noisy(name: str, scale: float = 0.1) -> nn.Module:
    return zoo.noisy_copy(model(name), scale)


@functools.cache
def padded(name: str) -> nn.Module:
    """The model `name` with a wider vocabulary whose extra ids win nearly every argmax."""
    return zoo.padded_vocab(name, model(name), 32)


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Some token ids, no two prompts of different salt sharing a start."""
    return tuple((7 + 31 * salt + 13 * i + i * i % 5) % zoo.VOCAB_SIZE for i in range(length))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    parted = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(parted, min(len(a), len(b)))


def corrupted(answer: Sequence[int], wrong: Callable[[int], bool]) -> list[int]:
    """An answer with other tokens at the places where `wrong` holds."""
    return [(token + wrong(i)) % zoo.VOCAB_SIZE for i, token in enumerate(answer)]


def request(
    name: str = "a",
    tokens: tuple[int, ...] = prompt(13),
    sampling: Sampling = GREEDY,
    max_tokens: int = 30,
    **more,
) -> Request:
    """A request that leaves drafting to the draft model alone, unless it says otherwise."""
    more.setdefault("speculation", Speculation(DRAFT))
    return Request(id=name, tokens=tokens, sampling=sampling, max_tokens=max_tokens, **more)


def unassisted(of: Request) -> Request:
    """The same request without speculation."""
    return replace(of, speculation=Speculation(OFF))


def loop_of(
    target: str | nn.Module,
    draft: nn.Module | None = None,
    window: int | None = 4,
    limits: Limits = LIMITS,
    costs: CostModel | None = None,
    **more: Any,
) -> EngineLoop:
    """A loop that drafts `window` tokens at a time, or as many as pay by `costs`; the draft's name
    is "tiny".
    """
    if isinstance(target, str):
        more, target = {"facts": facts(target), **more}, model(target)
    more |= {"draft": draft, "draft_name": "tiny" if draft else None, "cost_model": costs}
    limits = replace(limits, num_draft_tokens=window)
    return build_loop(target, zoo.VOCAB_SIZE, limits, **more)


def label(value: object) -> str:
    """What a family, a number or a sampling is called in the name of a test."""
    if isinstance(value, str | int):
        return str(value)
    return "cold" if value is GREEDY else "warm"


class Bench:
    """One loop at work.

    `asked`, `tokens`, `finished` and `failed` are by request id; `plans` is what was launched.
    """

    def __init__(self, loop: EngineLoop, *, check: bool = True) -> None:
        self.loop = loop
        self.asked: dict[str, Request] = {}
        self.events: list[Event] = []
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, Finished] = {}
        self.failed: dict[str, Failed] = {}
        self.plans: list[Plan] = []
        self.steps = self._calls = 0  # a call may only deliver what came
        self._check = check

    @property
    def windows(self) -> list[Window]:
        """The windows of all plans, in order."""
        return list(chain.from_iterable(plan.windows for plan in self.plans))

    @property
    def drafting(self) -> list[tuple[Window, ...]]:
        """The windows of each batched pass that verifies drafts."""
        forwards = chain.from_iterable(plan.forwards for plan in self.plans)
        batched = (forward.windows for forward in forwards if forward.batched)
        return [windows for windows in batched if any(window.draft_n for window in windows)]

    @property
    def drafting_together(self) -> int:
        """How many passes verify drafts of several rows."""
        return sum(sum(w.draft_n > 0 for w in windows) > 1 for windows in self.drafting)

    def submit(self, *requests: Request) -> Bench:
        for one in requests:
            self.loop.submit(one)
            self.asked[one.id] = one
        return self

    def step(self) -> list[Event]:
        self._calls += 1
        assert self._calls < MAX_STEPS, "the engine does not end"
        before = self.loop._in_flight
        events = self.loop.step()
        if self._check:
            self.loop.check()
        if (flight := self.loop._in_flight) is not None and flight is not before:
            self.plans.append(flight.plan)
            self.steps += 1
        for event in events:
            self._take(event)
        return events

    def until(self, reached: Callable[[], bool]) -> Bench:
        while not reached():
            assert self.loop.has_work, "the engine ran out of work first"
            self.step()
        return self

    def run(self, *requests: Request) -> Bench:
        """Submit, and step until no work is left."""
        self._calls = 0
        self.submit(*requests)
        while self.loop.has_work:
            self.step()
        assert not self.loop.runner.caches.single
        assert not self.loop.runner.caches.members
        return self

    def ops(self, kind: type[T]) -> list[T]:
        """The operations of one kind of all plans, in order."""
        ops = chain.from_iterable(plan.ops for plan in self.plans)
        return [op for op in ops if isinstance(op, kind)]

    def prove(
        self, target: str, company: str, first: Request, second: Request, meet: int = 6
    ) -> Bench:
        """Run `first` in company of `second`, and prove that each says what it says to plain
        decoding alone.

        `second` is not there ("alone"), comes behind `meet` tokens of the first ("joined") or is
        there first ("left").
        """
        together = [first] if company == "alone" else [first, second]
        self.submit(first)
        if company == "joined":
            self.until(lambda: len(self.tokens[first.id]) >= meet)
        self.run(*together[1:])
        assert not self.failed
        return self.proven(target, *together)

    def proven(self, target: str, *requests: Request, cancelled: str = "") -> Bench:
        """Prove that requests, all if none is given, have the tokens of plain decoding alone: one
        that was `cancelled`, as many as came.
        """
        for one in requests or self.asked.values():
            said, answer = self.tokens[one.id], plain(target, unassisted(one))
            if one.id == cancelled:
                assert self.finished[one.id].reason is FinishReason.CANCELLED
                answer = answer[: len(said)]
            assert said == answer, one.id
        return self

    def stats(self, name: str = "a") -> RequestStats:
        return self.finished[name].stats

    def drafted(self, name: str) -> int:
        """How many of the tokens committed so far were proposed by a drafter."""
        commits = (event for event in self.events if isinstance(event, TokensCommitted))
        return sum(sum(event.drafted) for event in commits if event.request_id == name)

    def _take(self, event: Event) -> None:
        name = event.request_id
        assert name not in {*self.finished, *self.failed}, f"{event} after the last event"
        if isinstance(event, TokensCommitted):
            assert event.tokens
            assert len(event.tokens) == len(event.drafted)
            self.tokens[name] += event.tokens
        elif isinstance(event, Finished):
            self.finished[name] = event
        elif isinstance(event, Failed):
            self.failed[name] = event
        else:
            assert isinstance(event, PrefillProgress)
        self.events.append(event)


def stored_length(loop: EngineLoop, tokens: Sequence[int]) -> int:
    """How many tokens of this conversation are kept; proves that what they make equals a cache
    computed afresh.
    """
    match = loop.scheduler.prefix.index.match([*tokens, 0])
    assert match is not None, "nothing was stored"
    length = match.length
    cache = loop.runner.caches.kept.build(match.pieces, length, length + 1)
    target, newest = loop.runner.model, mx.array([[5]])
    held = next_logits(target, cache, newest)
    fresh_cache = make_prompt_cache(target)
    target(mx.array([tokens[:length]]), cache=fresh_cache)
    fresh = next_logits(target, fresh_cache, newest)
    error = mx.abs(held - fresh).max().item()
    assert error < _tolerance(target), f"the stored cache is off by {error}"
    return length


def _tolerance(target: nn.Module) -> float:
    """Quantized caches round differently for one pass and for many."""
    kinds = {type(layer).__name__ for layer in make_prompt_cache(target)}
    return 0.4 if "QuantizedKVCache" in kinds else 2e-3


def next_logits(target: nn.Module, cache: list, newest: mx.array) -> mx.array:
    """Logits [V] behind `newest` [1, n]."""
    logits: mx.array = target(newest, cache=cache)[0, -1]
    return logits[: zoo.VOCAB_SIZE]


@functools.cache
def plain(name: str, of: Request) -> list[int]:
    """What the model `name` says to a request: prompt in one pass, then token by token; stops are
    honoured.
    """
    return decode(model(name), of)


def decode(target: nn.Module, of: Request) -> list[int]:
    cache, tokens = make_prompt_cache(target), list(of.tokens)
    sampler = RowSampler(of.sampling, zoo.VOCAB_SIZE)
    if len(tokens) > 1:
        target(mx.array([tokens[:-1]]), cache=cache)
    for _ in range(of.max_tokens):
        logits = next_logits(target, cache, mx.array([tokens[-1:]]))[None]
        history = (
            mx.array(tokens[-of.sampling.history :], mx.uint32) if of.sampling.penalised else None
        )
        place = Draw(sampler, len(tokens), history)
        choices = process(logits, [place])
        if of.mask is not None:
            choices = permit(choices, [of.mask.bits()])
        tokens.append(int(draw(choices, [place]).item()))
        if tokens[-1] in of.stop_ids:
            break
        if of.mask is not None and (not of.mask.advance(tokens[-1]) or of.mask.ended):
            break
    return tokens[len(of.tokens) :]
