"""When a tower looks: in slices beside a stream, once per image; how long features are held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.memory import MemoryGuard
from omlx.engine.speculation.strategy import OFF
from omlx.engine.step.plan import Forget, Look
from omlx.engine.step.row import Clock, Row
from omlx.engine.types import Request, Speculation
from omlx.engine.vision import features as looks_module
from omlx.engine.vision.features import Looks
from omlx.engine.vision.spans import PreparedImage, TowerFacts
from omlx.errors import BadRequest, EngineError
from tests.engine.harness import GREEDY, LIMITS, Bench, prompt
from tests.engine.harness import loop_of as text_loop
from tests.engine.vision.sighted import CAT, DOG, STEPS, decode, image, loop_of, shown, sighted
from tests.refusals import refused

SMALL = replace(LIMITS, prefill_chunk=64, prefill_slice=12)


def forgotten(bench: Bench) -> list[str]:
    return [name for op in bench.ops(Forget) for name in op.images]


def busy_bench(vision: Any, *, check: bool = True) -> Bench:
    """A bench on which a stream of words decodes."""
    bench = Bench(loop_of(vision, limits=SMALL), check=check)
    bench.submit(
        Request("words", prompt(8, 9), GREEDY, max_tokens=60, speculation=Speculation(OFF))
    )
    return bench.until(lambda: len(bench.tokens["words"]) >= 2)


def test_a_tower_takes_slices_beside_a_stream() -> None:
    vision = sighted("llama")  # 24 patches of 1 token each: 6 tokens of work a step
    bench = busy_bench(vision)
    request = shown("llama", (CAT,), GREEDY, OFF)
    bench.run(request)
    assert [(op.start, op.stop) for op in bench.ops(Look)] == [(0, 2), (2, 4)]
    for plan in bench.plans:
        if any(isinstance(op, Look) for op in plan.ops):
            assert any(window.sample for window in plan.windows), "the stream paused"
    assert bench.tokens["a"] == decode(vision, request)


def test_a_tower_alone_takes_what_a_chunk_may_take() -> None:
    bench = Bench(loop_of(sighted("llama"), limits=SMALL))
    bench.run(shown("llama", (CAT, DOG), GREEDY, OFF))
    assert [(op.image, op.start, op.stop) for op in bench.ops(Look)] == [
        ("cat", 0, STEPS),
        ("dog", 0, STEPS),
    ]


def test_a_step_of_a_tower_fits_any_slice() -> None:
    vision = sighted("llama", patch_cost=100.0)
    bench = busy_bench(vision)
    request = shown("llama", (CAT,), GREEDY, OFF)
    bench.run(request)
    assert [op.stop - op.start for op in bench.ops(Look)] == [1] * STEPS
    assert bench.tokens["a"] == decode(vision, request)


def test_a_large_image_pauses_a_stream_no_longer_than_words_do() -> None:
    """1,280 tokens of 4 patches each, of a tower that costs a tenth of the text model."""
    large = PreparedImage("large", {}, patches=4 * 1280, features=1280, grid=(32, 40))
    vision = sighted("llama", patch_cost=0.1)
    vision.tower.facts = replace(vision.tower.facts, steps=32, attention=1 / 6000)
    shows = shown("llama", (large,), GREEDY, OFF, max_tokens=1)
    reads = replace(shows, tokens=prompt(2000), spans=(), images=())
    slice_tokens = 64
    image, words = (
        max(work_beside_a_stream(vision, each, slice_tokens, large)) for each in (shows, reads)
    )
    assert image < words + 1  # work is counted in whole tokens
    assert words == slice_tokens


def work_beside_a_stream(
    vision: Any, request: Request, slice_tokens: int, image: PreparedImage
) -> list[float]:
    """The work of each step in tokens of prefill until a prompt is read; each has a token of the
    stream as well.
    """
    limits = replace(LIMITS, prefill_slice=slice_tokens, context_length=4096)
    bench = Bench(loop_of(vision.sibling(), limits=limits))
    stream = Request("words", prompt(8, 9), GREEDY, speculation=Speculation(OFF))
    bench.submit(replace(stream, max_tokens=200)).until(lambda: len(bench.tokens["words"]) >= 2)
    begun = len(bench.plans)
    bench.submit(request).until(lambda: bool(bench.tokens["a"]))
    facts, work = vision.tower.facts, []
    for plan in bench.plans[begun:]:
        assert any(window.sample for window in plan.windows), "the stream paused"
        steps = sum(op.stop - op.start for op in plan.ops if isinstance(op, Look))
        looked = steps * facts.step_cost(image.patches)
        work.append(looked + sum(window.width for window in plan.windows) - 1)
    assert len(work) > len(request.tokens) // slice_tokens
    return work


def test_attention_within_an_image_counts_as_work() -> None:
    facts = TowerFacts(steps=4, patch_cost=0.1, attention=0.01, attended=300)
    assert facts.step_cost(100) == pytest.approx(100 * 0.1 * 2 / 4)
    assert facts.step_cost(1000) == pytest.approx(1000 * 0.1 * 4 / 4)
    vision = sighted("llama")  # 6 tokens of work a step, and as much for attention
    vision.tower.facts = replace(vision.tower.facts, attention=1 / 24)
    bench = busy_bench(vision)
    bench.run(shown("llama", (CAT,), GREEDY, OFF))
    assert [op.stop - op.start for op in bench.ops(Look)] == [1] * STEPS


def test_two_rows_with_one_image_look_once() -> None:
    vision = sighted("qwen3_vl")
    bench = busy_bench(vision)
    first, second = shown("qwen3_vl", (CAT,), GREEDY), shown("qwen3_vl", (CAT,), GREEDY, salt=4)
    second = replace(second, id="b")
    bench.run(first, second)
    assert vision.tower.looked == ["cat"]
    for request in (first, second):
        assert bench.tokens[request.id] == decode(vision, request)


def test_a_failed_tower_ends_its_request_alone() -> None:
    vision = sighted("llama")
    vision.tower.fails = True
    bench = busy_bench(vision, check=False)
    bench.submit(shown("llama", (CAT,), GREEDY)).until(lambda: "a" in bench.failed)
    assert isinstance(bench.failed["a"].error, EngineError)
    vision.tower.fails = False
    again = shown("llama", (CAT,), GREEDY, id="again")
    bench.run(again)
    assert bench.tokens["again"] == decode(vision, again)
    assert len(bench.tokens["words"]) == 60


def test_features_that_the_device_cannot_compute_end_their_request_alone() -> None:
    vision = sighted("llama")
    good = vision.tower.look

    def damaged(image: Any) -> Any:
        features = yield from good(image)
        return replace(features, rows=features.rows * mx.array(float("nan")))

    vision.tower.look = damaged
    bench = busy_bench(vision)
    bench.submit(shown("llama", (CAT,), GREEDY)).until(lambda: "a" in bench.failed)
    vision.tower.look = good
    again = shown("llama", (CAT,), GREEDY, id="again")
    bench.run(again)
    assert bench.tokens["again"] == decode(vision, again)


def test_a_cancelled_row_leaves_its_image_to_others() -> None:
    vision = sighted("llama")
    bench = busy_bench(vision)
    first, second = shown("llama", (CAT,), GREEDY), shown("llama", (CAT,), GREEDY, id="b")
    bench.submit(first, second).until(lambda: bool(bench.ops(Look)))
    bench.loop.cancel("a")
    bench.run()
    assert bench.tokens["b"] == decode(vision, second)
    assert vision.tower.looked[:1] == ["cat"]


def test_a_half_seen_image_is_forgotten_with_its_row() -> None:
    vision = sighted("llama")
    bench = busy_bench(vision)
    bench.submit(shown("llama", (CAT,), GREEDY)).until(lambda: bool(bench.ops(Look)))
    bench.loop.cancel("a")
    bench.run()
    assert forgotten(bench) == ["cat"]
    assert not bench.loop.runner.vision._features
    assert not bench.loop.runner.vision._looking


def test_idle_features_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    vision = sighted("llama")
    room = 2 * CAT.features * vision.tower.facts.feature_bytes
    monkeypatch.setattr(looks_module, "MAX_IDLE_BYTES", room)
    bench = Bench(loop_of(vision))
    images = [image(f"image {i}", 4, 6) for i in range(4)]
    for i, each in enumerate([*images, images[2]]):
        bench.run(shown("llama", (each,), GREEDY, OFF, id=f"r{i}", salt=i, max_tokens=2))
    assert forgotten(bench) == ["image 0", "image 1"]
    assert vision.tower.looked == [each.name for each in images]
    assert list(bench.loop.runner.vision._features) == bench.loop.scheduler.looks.names[::-1]


def test_clearing_prefixes_forgets_features() -> None:
    vision = sighted("llama")
    bench = Bench(loop_of(vision)).run(shown("llama", (CAT,), GREEDY, OFF))
    bench.loop.clear_prefixes()
    bench.run()
    assert not bench.loop.runner.vision._features


def test_a_tower_teaches_the_cost_model_nothing() -> None:
    vision = sighted("llama")
    limits = replace(LIMITS, prefill_chunk=24)
    bench = Bench(loop_of(vision, limits=limits))
    before = bench.loop.cost_model.to_json()
    bench.run(shown("llama", (CAT, DOG), GREEDY, OFF, max_tokens=1))
    assert bench.loop.cost_model.to_json() == before
    text = Request("t", prompt(100), GREEDY, max_tokens=1, speculation=Speculation(OFF))
    bench.run(text)
    assert bench.loop.cost_model.to_json() != before, "else the test proves nothing"


def test_admission_counts_features_and_activations() -> None:
    facts = TowerFacts(2, patch_bytes=1000, feature_bytes=10)
    looks, request = Looks(facts), shown("llama", (CAT, DOG), GREEDY)
    assert looks.need(request) == (24 + 24) * 10 + 24 * 1000
    looks.plan(Row(1, request, list(request.tokens), 200, Clock(0.0)), 10_000)
    assert looks.need(request) == 0
    vision = sighted("llama")
    guard = MemoryGuard()
    guard.configure(1 << 20, 0)
    loop = loop_of(vision, memory=guard)
    loop.register()
    cache = loop.scheduler.prefix.layout.cache_bytes(256)
    guard.used = lambda: guard.soft - cache - 1000  # room for the cache, not for the tower
    bench = Bench(loop).submit(shown("llama", (CAT,), GREEDY))
    assert loop.scheduler.looks.need(bench.loop.scheduler.queue.waiting[0].request) > 1000
    reserved = loop.scheduler.memory.excess(
        cache + loop.scheduler.looks.need(shown("llama", (CAT,), GREEDY)), []
    )
    assert reserved > 0


def cut(request: Request) -> Request:
    return replace(request, tokens=request.tokens[: request.spans[0].stop])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda request: replace(request, images=()), "image.marker"),
        (lambda request: replace(request, prompt_logprobs=0), "image.prompt_logprobs"),
        (cut, "image.last"),
        (lambda request: replace(request, spans=()), "engine.token_id"),  # its ids need a span
    ],
)
def test_requests_that_show_images_wrongly_are_refused(change: Any, code: str) -> None:
    with refused(BadRequest, code):
        Bench(loop_of(sighted("llama"))).submit(change(shown("llama", (CAT,), GREEDY)))


def test_a_model_without_a_tower_refuses_images() -> None:
    with refused(BadRequest, "image.unsupported"):
        text_loop("llama").submit(shown("llama", (CAT,), GREEDY))
