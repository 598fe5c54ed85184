"""Loading a model in stages: every rank opens it lazily, keeps its layers, and reads only those.

leader                                   followers
open, judge, split ──── load ─────────►  open, compare fingerprints, cut
◄─────────────────────── opened ───────  or why not
read own layers ─────── read ─────────►  read own layers
◄─────────────────────── loaded ───────  bytes
probe, on all ranks at once ─ probe ──►  the same passes
◄─────────────────────── probed ───────  layout of own caches
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from omlx.engine.inspection.facts import ModelFacts, facts_of, probed_in_stages
from omlx.engine.inspection.forward_probe import forward_failure
from omlx.engine.model import cache_maker
from omlx.engine.piece import Layout
from omlx.engine.runner import Runner
from omlx.engine.stage.ends import (
    EVEN_ONLY,
    architecture,
    check_heads,
    check_split,
    place,
    shard,
    span,
    stage_refusal,
)
from omlx.engine.stage.group import Group
from omlx.engine.stage.link import Kind
from omlx.engine.stage.runners import Follower, Leader
from omlx.engine.stage.stages import Stages, StageStatus
from omlx.engine.steps import Steps, run_through
from omlx.errors import ModelError, Reason, StageError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.fingerprint import check_same, fingerprint
from omlx.models.eyes.open_eye import has_vision
from omlx.models.eyes.sight import Sight
from omlx.models.package.tokenizer import read_tokenizer, tokenizer_length
from omlx.models.pool.footprint import free_bytes
from omlx.models.pool.load_weights import (
    Dtype,
    LoadSteps,
    describe,
    load_steps,
    open_model,
    read_weights,
)
from omlx.models.pool.stage_split import check_counts, check_rooms, layer_bytes, split_layers

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.model import Model

_POLL_S: Final = 0.05
"""Seconds that the engine thread waits for replies before other models get a step."""


@dataclass(slots=True)
class StagedModel:
    """The leader's stage of a loaded model: a `StagedLoop`."""

    model: nn.Module
    group: Group
    stages: Stages
    facts: ModelFacts
    layout: str

    def runner(self) -> Runner:
        make_cache = cache_maker(self.model)
        return Leader(self.model, make_cache, self.facts, self.group, self.stages)

    def statuses(self) -> tuple[StageStatus, ...]:
        return _by_rank(self.stages)


class StagedReader:
    """Reads `model` in stages and every other model as usual: the weight reader of a leader.

    `layers` by rank override the split that follows from memory; `backend` is mlx's.
    """

    def __init__(
        self, model: str, stages: Stages, group: Group, layers: Sequence[int], backend: str
    ) -> None:
        self._model = model
        self.stages = stages
        self._group = group
        self._layers = layers
        self._backend = backend

    def __call__(
        self,
        entry: ModelEntry,
        dtype: Dtype,
        *,
        tokenizer: TokenizerWrapper | None,
        trusted: bool,
        sees: bool,
    ) -> LoadSteps:
        if entry.id != self._model:
            return load_steps(entry, dtype, tokenizer=tokenizer, trusted=trusted, sees=sees)
        return self._steps(entry, dtype, tokenizer or read_tokenizer(entry), trusted)

    def _steps(
        self, entry: ModelEntry, dtype: Dtype, tokenizer: TokenizerWrapper, trusted: bool
    ) -> LoadSteps:
        whole, config = open_model(entry.path, dtype, trusted=trusted)
        facts = facts_of(whole, tokenizer_length(tokenizer), cache_maker(whole))
        counts = self._counts(entry, whole)
        for rank, status in enumerate(_by_rank(self.stages)):
            status.layers = span(counts, rank) if counts else (0, len(whole.layers))
        cut(whole, self._group, counts)
        self.stages.ask(
            Kind.LOAD,
            {
                "model": entry.id,
                "dtype": dtype,
                "trusted": trusted,
                "counts": counts,
                "vocab_size": facts.vocab_size,
                "fingerprint": fingerprint(entry.path),
            },
        )
        yield from self._replies()
        self.stages.ask(Kind.READ, {})
        nbytes = yield from read_weights(whole)
        loaded = yield from self._replies()
        self.stages.own.weights_bytes = nbytes
        for rank, reply in loaded.items():
            self.stages.statuses[rank].weights_bytes = reply["weights_bytes"]
        self.stages.ask(Kind.PROBE, {})
        make_cache = cache_maker(whole)
        with self.stages.deadline():
            failure = forward_failure(cast("Model", whole), make_cache, facts.vocab_size)
            facts = probed_in_stages(facts, cast("Model", whole), make_cache)
        if failure is not None:
            raise ModelError(failure.code)
        probes = yield from self._replies()
        facts = replace(facts, layout=_largest(facts.layout, probes, self._rooms()))
        split = ",".join(map(str, counts)) or "tensor"
        layout = f"{split} of {self.stages.size} by {self._backend}"
        model = describe(entry, whole, config, tokenizer, facts)
        stage = StagedModel(whole, self._group, self.stages, facts, layout)
        off = "vision.off.staged" if has_vision(config) else "vision.off.text"
        return replace(model, stage=stage, sight=Sight(off_reason=Reason(off)))

    def _counts(self, entry: ModelEntry, whole: nn.Module) -> list[int]:
        """Layers by rank. Raises ModelError for an architecture that cannot be cut, StageError for
        a cut that leaves a rank without room or without what it must have.
        """
        size, module = self.stages.size, architecture(whole)
        refusal = stage_refusal(module, tensor=self._group.tensor)
        if refusal is not None:
            raise ModelError(refusal.code, architecture=module)
        layers = len(whole.layers)
        by_layer, others = layer_bytes(entry.path, layers)
        rooms = self._rooms()
        hosts = [status.host for status in _by_rank(self.stages)]
        arrays = cast(list[tuple[str, mx.array]], tree_flatten(whole.parameters()))
        total = sum(array.nbytes for _, array in arrays)
        if self._group.tensor:
            check_heads(whole, size)
            check_rooms([total // size] * size, rooms, hosts)
            return []
        counts = [*self._layers]
        if counts:
            check_counts(counts, layers, size)
        elif module in EVEN_ONLY:
            counts = [(layers + rank) // size for rank in range(size)]
        else:
            counts = split_layers(by_layer, others, rooms)
        check_split(whole, counts)
        cast_to = total / (sum(by_layer) + others)  # weights of another width than the files have
        held = [sum(by_layer[slice(*span(counts, rank))]) for rank in range(size)]
        check_rooms([int(cast_to * (others + nbytes)) for nbytes in held], rooms, hosts)
        return counts

    def _rooms(self) -> list[int]:
        """Bytes that a model may take, by rank."""
        return [status.free_bytes for status in _by_rank(self.stages)]

    def _replies(self) -> Steps[dict[int, dict[str, Any]]]:
        """Wait for one reply of every follower, other models' steps in between."""
        while not (replies := self.stages.poll(_POLL_S)):
            yield
        return replies


class FollowerModel:
    """A follower's stage of one model, with a runner for each lane."""

    def __init__(self, entry: ModelEntry, order: Mapping[str, Any], group: Group) -> None:
        """Open the model as the leader's `load` says. Raises ModelError and StageError."""
        if entry.id != order["model"]:
            raise StageError("stage.other_model", leader=order["model"], follower=entry.id)
        check_same(entry.id, order["fingerprint"], fingerprint(entry.path))
        self._group = group
        self._model, _ = open_model(entry.path, order["dtype"], trusted=order["trusted"])
        self._facts = facts_of(self._model, order["vocab_size"], cache_maker(self._model))
        self._body = cut(self._model, group, order["counts"])
        self._lanes: dict[int, Follower] = {}

    def read(self) -> int:
        """Read the weights of own layers; return their bytes."""
        return run_through(read_weights(self._model))

    def probe(self) -> dict[str, Any]:
        """Run the passes with which the leader probes; return the layout of own caches."""
        runner = self._runner()
        forward_failure(runner.model, runner.make_cache, self._facts.vocab_size)
        return asdict(probed_in_stages(self._facts, runner.model, runner.make_cache).layout)

    def open_lane(self, lane: int) -> None:
        self._lanes[lane] = self._runner()

    def close_lane(self, lane: int) -> bool:
        """Forget a lane; return whether it was the last one: the model is in use no longer."""
        return self._lanes.pop(lane, None) is not None and not self._lanes

    def lane(self, lane: int) -> Follower:
        return self._lanes[lane]

    def _runner(self) -> Follower:
        return Follower(self._body, cache_maker(self._model), self._facts, self._group)


def cut(model: nn.Module, group: Group, counts: Sequence[int]) -> Any:
    """Reduce a lazily opened model to what this rank holds; return what a follower runs: its body,
    or with a part of every layer the whole model, whose head may be in parts too.
    """
    if not group.tensor:
        return place(model, group.rank, counts)
    shard(model, mx.distributed.init())
    return model


def _by_rank(stages: Stages) -> tuple[StageStatus, ...]:
    """All stages as last heard of, this one as it is now."""
    stages.own.free_bytes = free_bytes()
    return (stages.own, *stages.statuses.values())


def _largest(own: Layout, probes: Mapping[int, Mapping[str, Any]], rooms: Sequence[int]) -> Layout:
    """A layout under which a cache that fits here fits on every rank.

    `rooms` are the bytes left by rank: those of a rank with less room count for more.
    """
    layouts = [own, *(Layout(**probe) for _, probe in sorted(probes.items()))]
    windows = [layout.window for layout in layouts if layout.window is not None]
    scales = [max(1.0, rooms[0] / max(1, room)) for room in rooms]
    scaled = list(zip(layouts, scales, strict=True))
    return Layout(
        row_bytes=max(ceil(layout.row_bytes * scale) for layout, scale in scaled),
        window_bytes=max(ceil(layout.window_bytes * scale) for layout, scale in scaled),
        window=max(windows, default=None),
        state_bytes=max(ceil(layout.state_bytes * scale) for layout, scale in scaled),
        recurrent=any(layout.recurrent for layout in layouts),
    )
