"""Prompts with images: tokens equal plain decoding, whatever drafts, whatever else runs, however
the prompt is cut. The whole product is slow; a slice of it runs always.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from itertools import count
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.device.model import cache_maker
from omlx.engine.device.runner import Runner
from omlx.engine.device_errors import DEVICE
from omlx.engine.speculation.strategy import AUTO, DRAFT, NGRAM, OFF
from omlx.engine.step.plan import Plan
from omlx.engine.types import Request, Speculation
from tests import zoo
from tests.engine import harness
from tests.engine.fakes import Corrupted
from tests.engine.faults import INTERACTIVITY, FailingDevice
from tests.engine.harness import GREEDY, LIMITS, WARM, Bench, prompt
from tests.engine.replay import Replay
from tests.engine.vision.sighted import CAT, DOG, FAMILIES, decode, image, loop_of, shown, sighted
from tests.lanes import few
from tests.zoo import VOCAB_SIZE

DRAFTS = ("plain", "perfect", "noisy", "wrong", "lookups")
PENALISED = replace(WARM, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2)
PRODUCT = [*itertools.product(FAMILIES, DRAFTS, ("cold", "warm"), (512, 11))]
SLICE = [(name, DRAFTS[1 + i % 4], ("cold", "warm")[i % 2], 11) for i, name in enumerate(FAMILIES)]
SAMPLINGS = {"cold": GREEDY, "warm": WARM}


def draft_of(name: str, kind: str) -> Any:
    if kind == "perfect":
        return zoo.build(name)
    if kind == "noisy":
        return zoo.noisy_copy(zoo.build(name), 0.1)
    return zoo.build("llama", 1) if kind == "wrong" else None


def strategy_of(kind: str) -> Any:
    return {"plain": OFF, "lookups": NGRAM}.get(kind, DRAFT)


@pytest.mark.parametrize(("name", "kind", "sampling", "chunk"), few(PRODUCT, *SLICE))
def test_tokens_equal_plain_decoding(name: str, kind: str, sampling: str, chunk: int) -> None:
    vision = sighted(name)
    limits = replace(LIMITS, prefill_chunk=chunk, prefill_slice=chunk)
    bench = Bench(loop_of(vision, draft_of(name, kind), limits=limits))
    request = shown(name, (CAT, DOG), SAMPLINGS[sampling], strategy_of(kind), max_tokens=32)
    bench.run(request)
    assert not bench.failed, bench.failed
    assert bench.tokens["a"] == decode(vision, request)
    if kind in ("perfect", "noisy", "wrong"):
        assert bench.stats().drafters["tiny"].rounds
    for plan in bench.plans:
        assert Plan.from_bytes(plan.to_bytes()) == plan
    if vision.tower.facts.whole:
        assert not cuts(bench, request), "a pass ended inside an image"
    elif chunk == 11:
        assert cuts(bench, request)


def cuts(bench: Bench, request: Request) -> list[int]:
    """Where passes of a prompt ended inside an image."""
    ends = [window.start + window.width for window in bench.windows if not window.sample]
    return [end for end in ends if any(s.start < end < s.stop for s in request.spans)]


@pytest.mark.parametrize(
    ("name", "company"),
    few(
        itertools.product(FAMILIES, ("joined", "left")),
        ("qwen3_vl", "joined"),
        ("gemma3", "left"),
    ),
)
def test_rows_with_other_images_and_none_share_a_batch(name: str, company: str) -> None:
    vision = sighted(name)
    limits = replace(LIMITS, prefill_chunk=16, prefill_slice=8)
    bench = Bench(loop_of(vision, zoo.build(name), limits=limits))
    first = shown(name, (CAT, DOG), GREEDY, max_tokens=32)
    second = shown(name, (DOG,), PENALISED, salt=3, id="b")
    words = Request("c", prompt(17, 9), GREEDY, max_tokens=20, speculation=Speculation(DRAFT))
    bench.submit(first)
    if company == "joined":
        bench.until(lambda: len(bench.tokens["a"]) >= 6)
    bench.run(second, words)
    assert not bench.failed, bench.failed
    for request in (first, second, words):
        assert bench.tokens[request.id] == decode(vision, request), request.id
    if not bench.loop.scheduler.batch.off_reason:
        assert any(forward.batched for plan in bench.plans for forward in plan.forwards)


@pytest.mark.parametrize("name", few(FAMILIES, "qwen3_5"))
def test_prefixes_are_shared_by_the_same_images_only(name: str) -> None:
    vision = sighted(name)
    bench = Bench(loop_of(vision, zoo.build(name)))
    first = shown(name, (CAT, DOG), GREEDY)
    bench.run(first)
    turn = replace(first, id="turn", tokens=(*first.tokens, *bench.tokens["a"], 4, 5, 6))
    bench.run(turn)
    assert bench.stats("turn").cached_n > first.spans[-1].stop
    other = shown(name, (CAT, CAT), GREEDY, id="other")
    bench.run(other)
    assert bench.stats("other").cached_n <= first.spans[1].start
    assert vision.tower.looked == ["cat", "dog"]
    for request in (turn, other):
        assert bench.tokens[request.id] == decode(vision, request), request.id


@pytest.mark.parametrize("name", few(FAMILIES, "qwen3_5", "gemma3"))
def test_a_prefix_may_end_inside_an_image(name: str) -> None:
    vision = sighted(name)
    bench = Bench(loop_of(vision))
    first = shown(name, (CAT,), GREEDY, OFF)
    bench.run(first)
    inside = first.spans[0].start + 13
    bench.loop.scheduler.prefix.index.match = _up_to(bench, inside)  # type: ignore[method-assign]
    again = replace(first, id="again")
    bench.run(again)
    cached = bench.stats("again").cached_n
    assert cached <= inside
    if bench.loop.scheduler.prefix.layout.resumes_anywhere:
        assert cached == inside
    assert bench.tokens["again"] == bench.tokens["a"]


def _up_to(bench: Bench, length: int) -> Any:
    match = bench.loop.scheduler.prefix.index.match
    return lambda tokens: match(tokens[: length + 1])


@pytest.mark.parametrize("name", few(FAMILIES, "qwen3_5", "gemma3"))
def test_text_alone_is_what_it_was(name: str) -> None:
    vision, text, ids = sighted(name), zoo.build(name), mx.array([prompt(24)])
    logits = vision.model(ids, cache=zoo.make_cache(vision.model))
    assert (logits == text(ids, cache=zoo.make_cache(text))).all().item()
    request = Request("a", prompt(40), WARM, max_tokens=12)
    bench, plain = Bench(loop_of(vision)).run(request), Bench(harness.loop_of(text)).run(request)
    assert bench.tokens == plain.tokens


IMAGES = [image(f"image {i}", rows, 12 // rows * 2) for i, rows in enumerate((1, 2, 3, 4, 6, 12))]


def random_request(name: str, chance: random.Random, number: int) -> Request:
    images = tuple(chance.choices(IMAGES, k=chance.choice((0, 1, 1, 2, 3))))
    return shown(
        name,
        images,
        replace(chance.choice((GREEDY, WARM)), seed=number),
        chance.choice((OFF, DRAFT, NGRAM, AUTO)),
        salt=chance.randrange(4),  # some share their beginning
        before=chance.randint(3, 40),
        max_tokens=chance.randint(1, 24),
        id=f"r{number}",
    )


@pytest.mark.parametrize("seed", few(range(8), 0))
@pytest.mark.parametrize("name", few(("qwen3_vl", "qwen3_5", "gemma3"), "qwen3_vl"))
def test_random_company(name: str, seed: int) -> None:
    chance = random.Random(f"{name} {seed}")
    vision = sighted(name, patch_cost=chance.choice((0.1, 1.0, 10.0)))
    limits = replace(
        LIMITS,
        max_rows=chance.choice((2, 4)),
        prefill_chunk=chance.choice((7, 64)),
        prefill_slice=chance.choice((5, 32)),
        prefix_bytes=chance.choice((1 << 16, 1 << 20)),
    )
    bench = Bench(loop_of(vision, zoo.noisy_copy(zoo.build(name), 0.1), limits=limits))
    requests = [random_request(name, chance, number) for number in range(10)]
    waiting, cancelled = list(requests), set[str]()
    while waiting or bench.loop.has_work:
        if waiting and (not bench.loop.has_work or chance.random() < 0.2):
            bench.submit(waiting.pop())
        if chance.random() < 0.03:
            cancelled.add(chance.choice(requests).id)
            bench.loop.cancel(max(cancelled))
        bench.step()
    assert not bench.failed, bench.failed
    for request in requests:
        said, wanted = bench.tokens[request.id], decode(vision, request)
        assert said == wanted[: len(said)], request.id
        assert len(said) == len(wanted) or request.id in cancelled


@pytest.mark.parametrize("family", few(("qwen3_vl", "qwen3_5", "gemma3"), "qwen3_5"))
def test_replayed_plans_leave_equal_caches(family: str) -> None:
    vision, other = sighted(family), sighted(family)
    loop = loop_of(vision, limits=replace(LIMITS, prefill_slice=6))
    loop.use_drafters([Corrupted(vision.model, lambda position: position % 5 == 2)])
    bench = Bench(loop)
    runner = Runner(other.model, VOCAB_SIZE, cache_maker(other.model), vision=other)
    replay = Replay(bench, runner, images={"cat": CAT, "dog": DOG})
    first = shown(family, (CAT, DOG), WARM, max_tokens=30)
    bench.submit(first)
    while len(bench.tokens["a"]) < 6:
        replay.step()
    second = shown(family, (DOG,), GREEDY, id="b", salt=2, max_tokens=6)
    replay.run(second, Request("c", prompt(11, 7), WARM, max_tokens=6))
    loop.clear_prefixes()
    replay.run()
    assert {"look", "forget", "open", "drop"} <= replay.ops
    for request in (first, second):
        assert bench.tokens[request.id] == decode(vision, request)


@pytest.mark.parametrize("text", few([INTERACTIVITY, None], INTERACTIVITY))
@pytest.mark.parametrize(
    ("site", "every"),
    few(
        [("look", 2), ("prefill", 2), ("decode", 9), ("decode", 1)],
        ("look", 2),
        ("decode", 9),
    ),
)
def test_a_failure_leaves_no_wrong_token_and_no_wrong_features(
    site: str, every: int, text: str | None
) -> None:
    rows = [shown("qwen3_vl", (CAT,), GREEDY, salt=salt, id=f"{salt}") for salt in (0, 4)]
    again = [shown("qwen3_vl", (CAT,), GREEDY, salt=salt, id=f"{salt}!") for salt in (0, 4)]
    answers = [decode(sighted("qwen3_vl"), request) for request in rows]
    for nth in count(0, every):
        with pytest.MonkeyPatch.context() as patch:
            device = FailingDevice(patch, site, nth, text)
            bench = Bench(loop_of(sighted("qwen3_vl"))).run(*rows)
            bench.run(*again)
            assert not bench.failed
        for requests in (rows, again):
            assert [bench.tokens[request.id] for request in requests] == answers, nth
        assert device.struck or nth
        assert DEVICE.lost is None
        if nth + every >= device.uses:
            break
    DEVICE.reset()
