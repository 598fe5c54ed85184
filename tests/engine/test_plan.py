"""A plan is a whole step as data: serialised and run by a second runner, it makes equal caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.engine.device.model import cache_maker
from omlx.engine.device.payloads import layout_of
from omlx.engine.device.runner import Runner
from omlx.engine.piece import Piece
from omlx.engine.step.plan import LAST, Evict, Forward, Open, Plan, Restore, Save, Window
from omlx.engine.types import Sampling
from tests.engine.fakes import Corrupted
from tests.engine.harness import (
    KINDS,
    LIMITS,
    WARM,
    Bench,
    loop_of,
    model,
    prompt,
    request,
    unassisted,
)
from tests.engine.replay import Replay
from tests.lanes import few
from tests.zoo import VOCAB_SIZE


@pytest.mark.parametrize("family", few(KINDS, "gemma3_text", "qwen3_next"))
def test_replayed_plans_leave_equal_caches(family: str) -> None:
    layout = layout_of(model(family), cache_maker(model(family)))
    room = layout.cache_bytes(56)  # for one conversation, not for all
    loop = loop_of(family, limits=replace(LIMITS, prefill_slice=6, prefix_bytes=3 * room))
    loop.use_drafters([Corrupted(model(family), lambda position: position % 5 == 2)])
    bench = Bench(loop)
    replay = Replay(bench, Runner(model(family), VOCAB_SIZE, cache_maker(model(family))))
    first = request("a", prompt(13), WARM, max_tokens=40)
    bench.submit(first)
    while len(bench.tokens["a"]) < 8:
        replay.step()
    replay.run(*(request(f"b{i}", prompt(9 + 5 * i, i), WARM, max_tokens=6) for i in range(2)))
    replay.run(request("c", (*first.tokens, *bench.tokens["a"], 3, 4), WARM, max_tokens=6))
    plainly = [unassisted(request(name, prompt(9), max_tokens=6)) for name in "de"]
    replay.run(*plainly)  # so that steps are launched before the one before is read
    loop.clear_prefixes()
    replay.run()
    bench.proven(family, first)
    assert {"open", "rewind", "restore", "save", "drop", "evict"} <= replay.ops
    assert (
        loop.scheduler.batch.off_reason is not None or {"merge", "extract", "filter"} <= replay.ops
    )
    assert any(window.tokens == LAST for plan in replay.plans for window in plan.windows)


def test_every_part_of_a_plan_survives_the_trip() -> None:
    sampling = Sampling(
        *(0.7, 0.9, 5, 0.1, 0.5, 0.2, (3, 4)),
        *(1.1, 3, 0.2, 4, 0.3, 5),
        ((7, -1.5), (9, 100.0)),
        seed=-(2**70),
        choice=3,
    )
    windows = (
        Window(1, 5, (4, 5), 2, (8, 9), "draft", history=(1, 2, 3)),
        Window(2, 7, LAST),
        Window(3, 0, (1, 2, 3), sample=False),
        Window(4, 1, (1,), draft_n=3, drafter="draft"),
    )
    plan = Plan(
        (
            Open(1, sampling, 5),
            Open(2, Sampling(), None),
            Restore(2, (3, 4), 4, 9),
            Save(1, (Piece(7, "state", 0, 4),)),
            Evict((3, 4)),
        ),
        (Forward(windows, batched=True),),
    )
    assert Plan.from_bytes(plan.to_bytes()) == plan
