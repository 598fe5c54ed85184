"""Runners of a staged model: rank 0 sends every plan before it carries it out, the others follow.

            leader                                      followers
    plan ── bytes ───────────── link ────────────────►  the same operations on their caches
    the newest ids, a device draft ── Group.share ───►  embedding, first layers ─┐
    last layers, head, sampling  ◄─── hidden states ────────────────────────────┘

Every collective is dispatched at once, in the order of the plan: two in one lazy graph could be
paired with the wrong ones of another rank, which gives wrong numbers without an error. An error on
any rank ends the group: ranks whose caches differ would go on with wrong answers.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import mlx.core as mx

from omlx.engine.device.facts import ModelFacts
from omlx.engine.device.launch import ForwardPass, Launch
from omlx.engine.device.model import Cache, MakeCache, Model
from omlx.engine.device.runner import Runner
from omlx.engine.device.sampling import Draw
from omlx.engine.memory import stepped
from omlx.engine.piece import Layout
from omlx.engine.stage.link import Kind, Order
from omlx.engine.stage.stages import Stages
from omlx.engine.step.plan import Plan, Read, Step, Window
from omlx.engine.step.prefill import FIRST

INIT_S: Final = 5
"""Least seconds in which processes that know each other's addresses must connect."""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes of a model: `rank` of `size`. `tensor`: each has a part of every layer."""

    rank: int
    size: int
    tensor: bool = False

    def share(self, ids: mx.array) -> mx.array:
        """Send ids [n] from rank 0 to the ranks that embed them; return them on every such rank.

        Other ranks give zeros [n] and get zeros where they embed nothing. In a pipeline the last
        rank embeds, a neighbour of rank 0 in every ring.
        """
        ids, first = ids.astype(mx.uint32), self.size - 1
        if self.tensor:
            ids = mx.distributed.all_sum(ids if self.rank == 0 else mx.zeros_like(ids))
        elif self.rank == 0:
            ids = mx.distributed.send(ids, first)
        elif self.rank == first:
            ids = mx.distributed.recv_like(ids, 0)
        mx.async_eval(ids)
        return ids


def join(order: Order) -> Group:
    """Connect this process to its group, by mlx's distributed engine.

    Blocks until all ranks have joined, in part without letting other threads run: call it once all
    are known to be there. Raises RuntimeError; the process ends by SIGALRM if the others do not
    join in time.
    """
    variable, content = "MLX_HOSTFILE", [[address] for address in order.ring]
    if order.backend == "jaccl":
        variable, content = "MLX_IBV_DEVICES", [*order.rdma]
        os.environ["MLX_JACCL_COORDINATOR"] = order.ring[0]
    with tempfile.TemporaryFile("w+") as file:  # has no name: a killed process leaves nothing
        file.write(json.dumps(content))
        file.flush()
        file.seek(0)
        os.environ |= {"MLX_RANK": str(order.rank), variable: f"/dev/fd/{file.fileno()}"}
        # No thread of Python's could end this process meanwhile.
        signal.alarm(max(INIT_S, ceil(order.timeout_s)))
        try:
            world = mx.distributed.init(strict=True, backend=order.backend)
        finally:
            signal.alarm(0)
            del os.environ["MLX_RANK"], os.environ[variable]
    return Group(world.rank(), world.size(), order.tensor)


class StageSizes:
    """`CacheSizes` by arithmetic: `length` returns the tokens of a row, `own` is the layout of this
    rank's layers, `whole` the one for all ranks.
    """

    def __init__(self, length: Callable[[int], int], own: Layout, whole: Layout) -> None:
        self._length = length
        self._whole = whole
        pairs = (
            (own.row_bytes, whole.row_bytes),
            (own.window_bytes, whole.window_bytes),
            (own.state_bytes, whole.state_bytes),
        )
        self.unseen = max(1 - held / nbytes if nbytes else 0.0 for held, nbytes in pairs)

    def row_bytes(self, row: int) -> int:
        length = self._length(row)
        return self._whole.cache_bytes(stepped(length)) if length else 0


class _StageRunner(Runner):
    """Base class of leader and follower: ids that only the leader's device knows go to the ranks
    that embed them.
    """

    def __init__(
        self, model: Model, make_cache: MakeCache, facts: ModelFacts, group: Group
    ) -> None:
        super().__init__(model, facts.vocab_size, make_cache, facts.traits)
        self.group = group
        self.facts = facts

    def launch(self, step: Step) -> Launch:
        """Dispatch a step. Raises the first error of an operation or a pass."""
        launch = super().launch(step)
        errors = [launched.error for launched in launch.passes]
        for error in (*launch.failed.values(), *errors):
            if error is not None:
                raise error
        return launch

    def _newest(self, rows: tuple[int, ...]) -> mx.array:
        return self.group.share(super()._newest(rows))


class Leader(_StageRunner):
    """The runner of rank 0, which samples. Its plans travel on a lane of its own."""

    prefill_first = FIRST

    def __init__(
        self, model: Model, make_cache: MakeCache, facts: ModelFacts, group: Group, stages: Stages
    ) -> None:
        super().__init__(model, make_cache, facts, group)
        if facts.own_layout is not None and facts.uncacheable is None:
            self.sizes = StageSizes(self._length, facts.own_layout, facts.layout)
        self._stages = stages
        self._lane = stages.open_lane()
        weakref.finalize(self, stages.drop_lane, self._lane)

    def launch(self, step: Step) -> Launch:
        self._stages.broadcast(Kind.PLAN, step.plan.to_bytes(), self._lane)
        with self._stages.deadline():
            return super().launch(step)

    def read(self, launch: Launch, *, last: bool = False) -> dict[int, Read]:
        """Wait for a step. Raises what the device raised: the other ranks may not know of it."""
        with self._stages.deadline():
            reads = super().read(launch, last=last)
            for launched in launch.passes:
                if launched.lost is not None:
                    raise launched.lost
            return reads

    def _length(self, row: int) -> int:
        return self.caches.lengths.get(row, 0)

    def sibling(self) -> Runner:
        return Leader(self.model, self.make_cache, self.facts, self.group, self._stages)

    def _draft(self, window: Window, drafts: Mapping[int, mx.array]) -> mx.array:
        return self.group.share(super()._draft(window, drafts))


class Follower(_StageRunner):
    """The runner of any other rank: computes hidden states, samples and reads nothing.

    `body` maps ids [rows, tokens] to hidden states [rows, tokens, D], without the head; with a part
    of every layer on each rank, to logits.
    """

    def __init__(self, body: Any, make_cache: MakeCache, facts: ModelFacts, group: Group) -> None:
        def forward(inputs: mx.array, /, *, cache: Cache) -> mx.array:
            hidden: mx.array = body(inputs, cache=cache)
            if not group.tensor:  # a part of each layer computes just what the leader computes
                mx.async_eval(hidden)  # sends it, also where nothing reads it
            return hidden

        super().__init__(forward, make_cache, facts, group)

    def follow(self, plan: Plan) -> None:
        """Dispatch a step of the leader's."""
        self.launch(Step(plan))

    def _draft(self, window: Window, drafts: Mapping[int, mx.array]) -> mx.array:
        return self.group.share(mx.zeros(window.draft_n, mx.uint32))

    def _score(
        self, launched: ForwardPass, logits: mx.array, following: mx.array, top: int
    ) -> None:
        """Compute what the leader needs to score a prompt."""
        mx.async_eval(logits)

    def _sample(self, launched: ForwardPass, logits: mx.array, draws: list[Draw]) -> None:
        """The leader samples; here, zeros [rows] stand for ids that are not known yet."""
        mx.async_eval(logits)
        launched.sampled = mx.zeros(logits.shape[0], mx.uint32)
