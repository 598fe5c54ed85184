"""Passes over long prompts stay within the memory limit, whatever the dimension of the heads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import mlx.core as mx
import pytest
from mlx_lm.models.llama import Model, ModelArgs

from omlx.engine.build import build_loop
from omlx.engine.device import gpu
from omlx.engine.device.facts import ModelFacts, facts_of, probed
from omlx.engine.device.model import cache_maker, float_bytes
from omlx.engine.loop import EngineLoop
from omlx.engine.memory import MemoryGuard
from omlx.engine.step.prefill import FLOOR
from omlx.engine.types import Limits, Request, Sampling, run_through
from omlx.errors import BadRequest
from omlx.models.catalog.config import pass_shape
from tests.engine.harness import LIMITS, Bench, unassisted
from tests.refusals import refused

VOCAB, HEADS, TOKENS = 64, 8, 1200
ROOMY = replace(LIMITS, context_length=1 << 16, prefix_bytes=1 << 20, prefill_chunk=2048)
HEAD_DIMS = (64, 128, 256)


def config(head_dim: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
    }


@cache
def wide(head_dim: int) -> tuple[Model, ModelFacts]:
    """A small model of many heads with random weights, and what its config tells."""
    mx.random.seed(head_dim)
    model = Model(ModelArgs.from_dict(config(head_dim)))
    mx.eval(model.parameters())
    make_cache = cache_maker(model)
    facts = run_through(probed(facts_of(model, VOCAB, make_cache), model, make_cache))
    return model, replace(facts, shape=pass_shape(config(head_dim), float_bytes(model)))


def loop_of(head_dim: int, memory: MemoryGuard | None = None, limits: Limits = ROOMY) -> EngineLoop:
    model, facts = wide(head_dim)
    loop = build_loop(model, VOCAB, limits, facts=facts, memory=memory)
    loop.register()
    return loop


def asked(name: str = "a", tokens: int = TOKENS) -> Request:
    ids = tuple((7 * i + i * i % 11) % VOCAB for i in range(tokens))
    return unassisted(Request(name, ids, max_tokens=4, sampling=Sampling(temperature=0)))


@contextmanager
def bounded(room: int) -> Iterator[tuple[MemoryGuard, int]]:
    """A limit that leaves `room` above what is in use now, and that in bytes of arrays."""
    mx.clear_cache()
    base = mx.get_active_memory()
    memory = MemoryGuard(room, lambda: mx.get_active_memory() - base)
    yield memory, base


def peak_of(bench: Bench, base: int) -> int:
    """Run to the end; return the most bytes of arrays in any step."""
    peaks = []
    while bench.loop.has_work:
        mx.reset_peak_memory()
        bench.step()
        peaks.append(mx.get_peak_memory() - base)
    return max(peaks)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_peak_of_a_long_prompt_stays_below_the_limit(head_dim: int) -> None:
    unbounded = Bench(loop_of(head_dim)).run(asked())
    with bounded(16 << 20) as (memory, base):
        bench = Bench(loop_of(head_dim, memory)).submit(asked())
        assert peak_of(bench, base) <= 16 << 20
    assert bench.tokens["a"] == unbounded.tokens["a"]
    # The scores of a pass over the whole prompt would have taken 46 MB.
    widths = [window.width for window in bench.windows if not window.sample]
    assert sum(widths) == TOKENS - 1
    assert max(widths) >= 4 * FLOOR, "memory for longer passes was not used"


def test_several_prompts_at_once_stay_below_the_limit() -> None:
    requests = [asked(name, 300 + 150 * i) for i, name in enumerate("abcd")]
    with bounded(24 << 20) as (memory, base):
        bench = Bench(loop_of(64, memory)).submit(*requests)
        assert peak_of(bench, base) <= 24 << 20
    assert not bench.failed
    for one in requests:
        assert bench.tokens[one.id] == Bench(loop_of(64)).run(one).tokens[one.id]


def test_a_prompt_whose_shortest_pass_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    with bounded(8 << 20) as (memory, _):
        loop = loop_of(64, memory)
        with refused(BadRequest, "memory.never") as caught:
            loop.submit(asked(tokens=20_000))
        most = caught.value.params["most"]
        assert 512 < most < 20_000
        bench = Bench(loop).run(asked("b", most // 2))
    assert bench.finished["b"]


def test_what_passes_take_is_learned() -> None:
    with bounded(160 << 20) as (memory, _):
        loop = loop_of(128, memory)
        expected = loop.for_texts.chunk.activations.estimate(900, TOKENS)
        Bench(loop).run(asked())
        learned = loop.for_texts.chunk.activations.estimate(900, TOKENS)
    # A CPU writes the softmax over the scores, of which two are expected to exist.
    assert 0.4 * expected < learned < 0.9 * expected


def test_buffers_are_released_once_a_prompt_and_not_while_one_is_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[int] = []
    loop = loop_of(64, limits=replace(ROOMY, prefill_chunk=400))
    bench = Bench(loop)
    monkeypatch.setattr("omlx.engine.loop.release_buffers", lambda: released.append(bench.steps))
    bench.run(replace(asked(), max_tokens=40))
    assert len(released) == 1
    prefills = [plan for plan in bench.plans if not all(w.sample for w in plan.windows)]
    assert released[0] >= len(prefills) == 3
    bench.run(replace(asked("b", 200), tokens=asked(tokens=200).tokens[::-1]))
    assert len(released) == 2


def test_a_gpu_is_waited_for_before_buffers_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(mx, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append("clear"))
    gpu.release_buffers()
    monkeypatch.setattr(gpu, "on_gpu", lambda: True)
    gpu.release_buffers()
    on_cpu = ["clear"] if mx.default_device() == mx.Device(mx.cpu) else ["synchronize", "clear"]
    assert calls == [*on_cpu, "synchronize", "clear"]


SERVED = """
import mlx.core as mx
from omlx.engine.build import build_loop
from omlx.models.pool.footprint import Trimmer, bound_mlx, used_bytes
from omlx.machine import footprint, set_up_allocator
import sys, threading, time

set_up_allocator()
from omlx.engine.memory import MemoryGuard
from tests.engine.harness import Bench
from tests.engine.test_pass_memory import ROOMY, VOCAB, asked, wide

model, facts = wide(int(sys.argv[1]))
limit = used_bytes() + (96 << 20)
bound_mlx(limit)
memory = MemoryGuard(limit, used_bytes, trim=Trimmer(time.monotonic))
loop = build_loop(model, VOCAB, ROOMY, facts=facts, memory=memory)
loop.register()
peak, ended = [0], threading.Event()

def watch():
    while not ended.wait(0.002):
        peak[0] = max(peak[0], footprint())

watcher = threading.Thread(target=watch)
watcher.start()
bench = Bench(loop, check=False).run(asked(tokens=32_000))
ended.set()
watcher.join()
assert len(bench.tokens["a"]) == 4
print(peak[0], limit)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_process_stays_below_the_limit_at_a_long_context(head_dim: int) -> None:
    """32,000 tokens within 96 MB; the scores of a pass of 2,048 tokens would take 2.1 GB."""
    command = [sys.executable, "-c", SERVED, str(head_dim)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    peak, limit = map(int, ran.stdout.split())
    assert peak <= limit, f"{peak >> 20} of {limit >> 20} MB"
