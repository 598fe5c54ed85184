"""Runners of a staged model: rank 0 sends every plan before it carries it out, the others follow.

            leader                                      followers
    plan ── bytes ───────────── link ────────────────►  the same operations on their caches
    the newest ids, a device draft ── Group.share ───►  embedding, first layers ─┐
    last layers, head, sampling  ◄─── hidden states ────────────────────────────┘

An error on any rank ends the group: ranks whose caches differ would go on with wrong answers.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from omlx.engine.inspection.facts import ModelFacts
from omlx.engine.launch import ForwardPass, Launch
from omlx.engine.model import Cache, MakeCache, Model
from omlx.engine.plan import Plan, Read, ScheduledStep, Window
from omlx.engine.prefill import FIRST
from omlx.engine.runner import Runner
from omlx.engine.sampling import Draw
from omlx.engine.stage.group import Group
from omlx.engine.stage.link import Kind
from omlx.engine.stage.sizes import StageSizes
from omlx.engine.stage.stages import Stages


class _StageRunner(Runner):
    """What leader and followers share: ids that only the leader's device knows go to the ranks that
    embed them.
    """

    def __init__(
        self, model: Model, make_cache: MakeCache, facts: ModelFacts, group: Group
    ) -> None:
        super().__init__(model, facts.vocab_size, make_cache, facts.traits)
        self.group = group
        self.facts = facts

    def launch(self, step: ScheduledStep) -> Launch:
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

    def launch(self, step: ScheduledStep) -> Launch:
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
        """Return a runner of the same stages."""
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
        self.launch(ScheduledStep(plan))

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
