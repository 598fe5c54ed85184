"""Plans with images, carried out by a second runner that looks for itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.engine.device.model import cache_maker
from omlx.engine.device.runner import Runner
from omlx.engine.types import Request
from tests.engine.fakes import Corrupted
from tests.engine.harness import GREEDY, LIMITS, WARM, Bench, prompt
from tests.engine.replay import Replay
from tests.engine.vision.sighted import CAT, DOG, decode, loop_of, shown, sighted
from tests.zoo import VOCAB_SIZE


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5", "gemma3"])
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
    bench.submit(second, Request("c", prompt(11, 7), WARM, max_tokens=6))
    while loop.has_work:
        replay.step()
    loop.clear_prefixes()
    while loop.has_work:
        replay.step()
    assert {"look", "forget", "open", "drop"} <= replay.ops
    for request in (first, second):
        assert bench.tokens[request.id] == decode(vision, request)
