"""One staged model at work: drafts on the device, rejections, merges, prefixes, sampling, masks,
penalties, logprobs, a cancel, company. Rank 0 prints what came of it.

python -m tests.engine.stage.scenario FAMILY LAYERS      layers by rank, such as 2,1, or "tensor"
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
from mlx import nn

from omlx.engine.build import build_loop
from omlx.engine.inspection.facts import facts_of, probed_in_stages
from omlx.engine.kv import CacheTable
from omlx.engine.loop import EngineLoop
from omlx.engine.model import cache_maker
from omlx.engine.plan import Plan, ScheduledStep
from omlx.engine.prefix.payload import layout_of
from omlx.engine.runner import Runner
from omlx.engine.stage.ends import place
from omlx.engine.stage.group import Group
from omlx.engine.stage.link import Kind, Link
from omlx.engine.stage.runners import Follower, Leader
from omlx.engine.stage.stages import Stages
from omlx.engine.types import PrefillProgress, Request, TokensCommitted
from omlx.errors import StageLost
from tests import zoo
from tests.engine.fakes import Corrupted, same_state
from tests.engine.harness import GREEDY, LIMITS, WARM, Bench, prompt, request
from tests.engine.masks import Ruled, formal, until

PENALISED = replace(
    WARM,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias=((7, 2.0),),
)


def requests() -> list[Request]:
    return [
        request("penalised", prompt(13), PENALISED, max_tokens=16),
        request("masked", prompt(11, 2), WARM, max_tokens=16, mask=Ruled(until(formal, 13))),
        request("scored", prompt(12, 3), WARM, max_tokens=12, top_logprobs=3, prompt_logprobs=2),
        request("second", prompt(9, 4), replace(PENALISED, choice=1), max_tokens=12),
    ]


def stage(family: str, rank: int, counts: list[int]) -> tuple[nn.Module, nn.Module, object]:
    """The whole model, the stage of `rank`, and the stage's body."""
    whole, cut = zoo.build(family), zoo.build(family)
    if not counts:
        world = mx.distributed.init()
        cut.shard(world)  # type: ignore[operator] — of the families that have it
        return whole, cut, cut
    return whole, cut, place(cut, rank, counts)


def connect(rank: int, size: int) -> list[Link]:
    """The links of rank 0 to all others, or of a follower to rank 0."""
    port = int(os.environ["OMLX_TEST_CONTROL"])
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as listener:
            return [Link(listener.accept()[0]) for _ in range(size - 1)]
    for _ in range(300):
        with suppress(ConnectionRefusedError):
            return [Link(socket.create_connection(("127.0.0.1", port)))]
        time.sleep(0.1)  # the leader is importing mlx
    raise TimeoutError("no leader")


def follow(runner: Follower, link: Link) -> None:
    while (frame := link.receive()) is not None and frame.kind is Kind.PLAN:
        runner.follow(Plan.from_bytes(frame.payload))
        runner.caches.check()
    left = (runner.caches.single, runner.caches.members, list(runner.caches.kept))
    assert not any(left), left


class Lead:
    """Rank 0: the loop, and a runner of the whole model that replays every plan beside it."""

    def __init__(self, loop: EngineLoop, whole: nn.Module, own: slice | None) -> None:
        self.bench = Bench(loop)
        self._shadow = Runner(whole, zoo.VOCAB_SIZE, cache_maker(whole))
        self._own = own
        self._seen: object = None

    def step(self) -> None:
        self.bench.step()
        launch = self.bench.loop._in_flight
        if launch is None or launch is self._seen:
            return
        self._seen = launch
        drafts = {
            part.forward.windows[0].row: tuple(part.draft.tolist())
            for part in launch.passes
            if part.draft is not None
        }
        self._shadow.launch(ScheduledStep(launch.plan.with_drafts(drafts)))
        if self._own is not None:
            agree(self._shadow.caches, self.bench.loop.runner.caches, self._own)

    def run(self, *asked: Request, cancel: str | None = None) -> None:
        self.bench.submit(*asked)
        steps = 0
        while self.bench.loop.has_work:
            self.step()
            steps += 1
            if steps == 6 and cancel is not None:
                self.bench.loop.cancel(cancel)


def agree(whole: CacheTable, stage: CacheTable, own: slice) -> None:
    """Prove that a stage's caches are bit-equal to those layers of the whole model's."""
    assert whole.lengths == stage.lengths
    assert whole.members == stage.members
    for row, cache in whole.single.items():
        assert same_state(cache[own], stage.single[row]), row
    assert same_state(whole.batch[own] if whole.batch else [], stage.batch)
    assert set(whole.kept) == set(stage.kept)


def main() -> None:
    family, split = sys.argv[1:3]
    rank = int(os.environ["MLX_RANK"])
    size = len(json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text()))
    links = connect(rank, size)
    lost: list[StageLost] = []
    world = mx.distributed.init(strict=True, backend="ring")
    assert (world.rank(), world.size()) == (rank, size)
    counts = [] if split == "tensor" else [int(count) for count in split.split(",")]
    group = Group(rank, size, tensor=not counts)
    whole, cut, body = stage(family, rank, counts)
    facts = facts_of(whole, zoo.VOCAB_SIZE, cache_maker(whole))
    make_cache = cache_maker(cut)
    if rank > 0:
        follower = Follower(body, make_cache, facts, group)
        probed_in_stages(facts, follower.model, make_cache)
        follow(follower, links[0])
        return
    by_rank = dict(enumerate(links, 1))
    stages = Stages(by_rank, dict.fromkeys(by_rank, "here"), 60.0, lost.append)
    runner = Leader(cut, make_cache, facts, group, stages, 0)
    facts = probed_in_stages(facts, cut, make_cache)
    room = layout_of(whole, cache_maker(whole)).cache_bytes(56)
    limits = replace(LIMITS, prefill_slice=6, prefix_bytes=2 * room)
    alone = play(build_loop(zoo.build(family), zoo.VOCAB_SIZE, limits), whole, None)
    loop = build_loop(cut, zoo.VOCAB_SIZE, limits, facts=facts, runner=runner)
    own = slice(-len(make_cache()), None) if counts else None
    staged = play(loop, whole, own)
    assert not lost
    stages.close()
    sys.stdout.write(json.dumps(compared(alone, staged)) + "\n")


def play(loop: EngineLoop, whole: nn.Module, own: slice | None) -> Bench:
    """Run the scenario; prove the caches of layers `own` after every step."""
    if loop.scheduler.speculator.off_reason is None:
        loop.use_drafters([Corrupted(whole, lambda position: position % 5 == 2)])
    rank_0 = Lead(loop, whole, own)
    bench = rank_0.bench
    first = request("a", prompt(13), WARM, max_tokens=40)
    bench.submit(first)
    while len(bench.tokens["a"]) < 8:
        rank_0.step()
    rank_0.run(*(request(f"b{i}", prompt(9 + 5 * i, i), WARM, max_tokens=6) for i in range(2)))
    rank_0.run(request("c", (*first.tokens, *bench.tokens["a"], 3, 4), WARM, max_tokens=6))
    rank_0.run(request("d", prompt(30, 3), GREEDY, max_tokens=30))
    for one in requests():
        rank_0.run(one)
    rank_0.run(*(replace(one, id=f"{one.id} 2") for one in requests()), cancel="second 2")
    loop.clear_prefixes()
    while loop.has_work:
        rank_0.step()
    return bench


def compared(alone: Bench, staged: Bench) -> dict[str, object]:
    whole = set(alone.finished) - {"second 2"}  # cancelled
    return {
        "same": {name: alone.tokens[name] == staged.tokens[name] for name in whole},
        "same_logprobs": logprobs(alone) == logprobs(staged),
        "failed": [failure.error.message for failure in staged.failed.values()],
        "drafted": sum(window.draft_n for window in staged.windows),
        "batched": sum(forward.batched for plan in staged.plans for forward in plan.forwards),
        "restored": sum(op.op == "restore" for plan in staged.plans for op in plan.ops),
        "plans": len(staged.plans),
    }


def logprobs(bench: Bench) -> list[str]:
    """Everything that was scored for the request "scored", alone."""
    return [
        str(event.logprobs)
        for event in bench.events
        if event.request_id == "scored" and isinstance(event, TokensCommitted | PrefillProgress)
    ]


if __name__ == "__main__":
    main()
