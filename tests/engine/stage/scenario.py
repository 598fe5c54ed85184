"""The script in stages: for each way to cut a model, rank 0 prints how it compares to one process.

python -m tests.engine.stage.scenario FAMILY WAY…    a way: layers by rank, such as 2,1, or "tensor"

One group of processes tries all ways; ranks without layers wait.
"""

from __future__ import annotations

import faulthandler
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
from omlx.engine.device.facts import facts_of, probed_in_stages
from omlx.engine.device.model import cache_maker
from omlx.engine.device.payloads import layout_of
from omlx.engine.stage.link import Kind, Link, Order
from omlx.engine.stage.runners import Follower, Group, Leader
from omlx.engine.stage.stages import Stages
from omlx.engine.step.plan import Plan
from omlx.engine.types import Limits
from omlx.errors import StageLost
from omlx.models.stages import cut
from tests import zoo
from tests.engine.harness import LIMITS, Bench
from tests.engine.stage.ranks import PATIENCE
from tests.engine.stage.script import MAX_ROWS, Play, compared

MIXED = "llama_mixed"


def connect(rank: int, size: int) -> list[Link]:
    """The links of rank 0 to all others, or of a follower to rank 0."""
    port = int(os.environ["OMLX_TEST_CONTROL"])
    if rank == 0:
        links = {}
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as listener:
            while len(links) < size - 1:
                link = Link(listener.accept()[0])
                links[link.expect(Kind.HELLO).lane] = link
        return [links[other] for other in range(1, size)]
    for _ in range(1200):
        with suppress(ConnectionRefusedError):
            link = Link(socket.create_connection(("127.0.0.1", port)))
            link.send(Kind.HELLO, lane=rank)
            return [link]
        time.sleep(0.1)  # the leader is importing mlx
    raise TimeoutError("no leader")


def join(rank: int, size: int) -> None:
    """Connect all ranks by mlx."""
    world = mx.distributed.init(strict=True, backend="ring")
    assert (world.rank(), world.size()) == (rank, size)


def build(family: str, way: str, size: int) -> nn.Module:
    """The whole model; where three ranks share its heads, one that has three times as many."""
    if family == MIXED:
        return mixed()
    if way == "tensor" and size == 3:
        return zoo.build_thirds(family)
    return zoo.build(family)


def mixed() -> nn.Module:
    """A Llama model in bfloat16 with norms in float32, which widen its hidden states."""
    model = zoo.build("llama")
    model.set_dtype(mx.bfloat16)
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.set_dtype(mx.float32)
    return model


def layers_of(way: str) -> list[int]:
    return [] if way == "tensor" else [int(count) for count in way.split(",")]


def follow(family: str, way: str, rank: int, size: int, link: Link) -> None:
    """Carry out a leader's plans until it says that all is over."""
    counts = layers_of(way)
    if rank >= (len(counts) or size):
        return
    model = build(family, way, size)
    facts = facts_of(model, zoo.VOCAB_SIZE, cache_maker(model))
    group = Group(rank, len(counts) or size, tensor=not counts)
    body = cut(model, group, counts)
    runner = Follower(body, cache_maker(model), facts, group)
    probed_in_stages(facts, runner.model, runner.make_cache)
    link.expect(Kind.LANE)
    while (frame := link.expect(Kind.PLAN, Kind.CLOSE)).kind is Kind.PLAN:
        runner.follow(Plan.from_bytes(frame.payload))
        runner.caches.check()
    left = (runner.caches.single, runner.caches.members, list(runner.caches.kept))
    assert not any(left), left


def lead(family: str, way: str, links: list[Link], whole: nn.Module, limits: Limits) -> Bench:
    """Run the script in stages."""
    counts = layers_of(way)
    size = len(counts) or len(links) + 1
    model = build(family, way, size)
    facts = facts_of(model, zoo.VOCAB_SIZE, cache_maker(model))
    group = Group(0, size, tensor=not counts)
    cut(model, group, counts)
    make_cache = cache_maker(model)
    lost: list[StageLost] = []
    by_rank = dict(enumerate(links[: size - 1], 1))
    stages = Stages(by_rank, Order(("here",) * size, timeout_s=60.0), lost.append)
    layout = layout_of(whole, cache_maker(whole))  # so that the plans are those of one process
    facts = replace(probed_in_stages(facts, model, make_cache), layout=layout)
    runner = Leader(model, make_cache, facts, group, stages)
    loop = build_loop(model, zoo.VOCAB_SIZE, limits, facts=facts, runner=runner)
    own = slice(-len(make_cache()), None) if counts else None
    staged = Play(loop, whole, own).perform()
    stages.broadcast(Kind.CLOSE)
    assert not lost
    return staged


def main() -> None:
    faulthandler.dump_traceback_later(float(os.environ[PATIENCE]), exit=True)
    family, *ways = sys.argv[1:]
    rank = int(os.environ["MLX_RANK"])
    size = len(json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text()))
    links = connect(rank, size)
    if rank > 0:
        links[0].expect(Kind.JOIN)  # all are there: who connects too early gives up in time
        join(rank, size)
        for way in ways:
            follow(family, way, rank, size, links[0])
        return
    whole = build(family, ways[0], size)
    room = layout_of(whole, cache_maker(whole)).cache_bytes(56)
    limits = replace(
        LIMITS, prefill_chunk=12, prefill_slice=6, prefix_bytes=2 * room, max_rows=MAX_ROWS
    )
    alone = Play(
        build_loop(build(family, ways[0], size), zoo.VOCAB_SIZE, limits), whole, None
    ).perform()
    for link in links:
        link.send(Kind.JOIN)
    join(rank, size)
    results = {way: compared(alone, lead(family, way, links, whole, limits)) for way in ways}
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
