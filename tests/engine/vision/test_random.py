"""Random company: requests with and without images come, go and are cancelled; each says what it
says alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from omlx.engine.speculation.strategy import AUTO, DRAFT, NGRAM, OFF
from omlx.engine.types import Request
from tests import zoo
from tests.engine.harness import GREEDY, LIMITS, WARM, Bench
from tests.engine.vision.sighted import decode, image, loop_of, shown, sighted
from tests.lanes import few

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
@pytest.mark.parametrize("name", few(("qwen3_vl", "qwen3_5", "gemma3"), "qwen3_vl", "gemma3"))
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
