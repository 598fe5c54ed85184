"""Loading a model in stages: every rank opens it lazily, keeps its layers, and reads only those.

leader                                   followers
fingerprint ─────────── check ────────►  compare with their own files
◄───────────────────────────────────────  bytes left, or why not
open, judge, split, cut
read own layers ─────── load ─────────►  open, cut, read own layers
◄───────────────────────────────────────  bytes of weights
probe, on all ranks at once ─ probe ──►  the same passes
◄───────────────────────────────────────  layout of own caches
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from mlx import nn

from omlx.engine.device.facts import facts_of, forward_failure, probed_in_stages
from omlx.engine.device.model import cache_maker
from omlx.engine.piece import Layout
from omlx.engine.stage import ends
from omlx.engine.stage.link import Frame, Kind
from omlx.engine.stage.runners import Follower, Group, Leader
from omlx.engine.stage.stages import Stages
from omlx.engine.step.plan import Plan
from omlx.engine.types import run_through
from omlx.errors import ModelError, Reason, StageError
from omlx.models.catalog.facts import check_same, fingerprint
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer, tokenizer_length
from omlx.models.pool.footprint import release_memory
from omlx.models.pool.load_weights import LoadOptions, LoadSteps, StagedLoop, describe, load_steps
from omlx.models.pool.opening import Dtype, nbytes_of, open_model, read_weights
from omlx.models.vision.support import VisionSupport, has_vision

if TYPE_CHECKING:
    from omlx.engine.device.model import Model


class StagedReader:
    """Weight reader of a leader: `model` in stages, every other model as usual."""

    def __init__(self, model: str, stages: Stages, group: Group) -> None:
        self._model = model
        self.stages = stages
        self._group = group

    def __call__(self, entry: ModelEntry, dtype: Dtype, options: LoadOptions) -> LoadSteps:
        if entry.id != self._model:
            return load_steps(entry, dtype, options)
        return self._steps(entry, dtype, options)

    def _steps(self, entry: ModelEntry, dtype: Dtype, options: LoadOptions) -> LoadSteps:
        trusted, tokenizer = options.trusted, options.tokenizer or read_tokenizer(entry)
        self.stages.ask(Kind.CHECK, {"model": entry.id, "fingerprint": fingerprint(entry.path)})
        yield from self.stages.replies()
        whole, config, _ = open_model(entry.path, dtype, trusted=trusted)
        facts = facts_of(whole, tokenizer_length(tokenizer), cache_maker(whole), options.kv_bits)
        counts = self._counts(whole)
        for status in self.stages.statuses:
            rank = status.rank
            status.layers = ends.span(counts, rank) if counts else (0, len(whole.layers))
        cut(whole, self._group, counts)
        order = {"dtype": dtype, "trusted": trusted, "counts": counts, "kv_bits": facts.kv_bits}
        self.stages.ask(Kind.LOAD, {**order, "vocab_size": facts.vocab_size})
        nbytes = yield from read_weights(whole)
        replies = yield from self.stages.replies()
        for rank, reply in {0: {"weights_bytes": nbytes}, **replies}.items():
            self.stages.statuses[rank].weights_bytes = reply["weights_bytes"]
        self.stages.ask(Kind.PROBE, {})
        model, make_cache = cast("Model", whole), cache_maker(whole, facts.kv_bits)
        with self.stages.deadline():
            failure = forward_failure(model, make_cache, facts.vocab_size)
        with self.stages.deadline():
            facts = probed_in_stages(facts, model, make_cache)
        if failure is not None:
            raise ModelError(failure.code)
        probes = yield from self.stages.replies()
        facts = replace(facts, layout=_largest(facts.layout, probes, self.stages.rooms))
        split = ",".join(map(str, counts)) or "tensor"
        layout = f"{split} of {self._group.size} by {self.stages.order.backend}"
        runner = partial(Leader, model, make_cache, facts, self._group, self.stages)
        stage = StagedLoop(layout, runner, lambda: self.stages.statuses)
        off = "vision.off.staged" if has_vision(config) else "vision.off.text"
        loaded = describe(entry, whole, config, tokenizer, facts)
        vision = VisionSupport(off_reason=Reason(off))
        return replace(
            loaded, stage=stage, vision=vision, library=options.library, kv_bits=options.kv_bits
        )

    def _counts(self, whole: nn.Module) -> list[int]:
        """Return layers by rank; empty if each rank has a part of every layer.

        Raises ModelError for an architecture that cannot be split, StageError for a split that
        exceeds a rank's room or lacks a required part.
        """
        size, rooms, order = self._group.size, self.stages.rooms, self.stages.order
        ends.check_architecture(whole, tensor=self._group.tensor)
        layers = [nbytes_of(layer) for layer in whole.layers]
        others = nbytes_of(whole) - sum(layers)
        if self._group.tensor:
            ends.check_heads(whole, size)
            check_rooms([nbytes_of(whole) // size] * size, rooms, order.hosts)
            return []
        counts = [*order.layers]
        if counts:
            check_counts(counts, len(layers), size)
        elif ends.architecture(whole) in ends.EVEN_ONLY:
            counts = [(len(layers) + rank) // size for rank in range(size)]
        else:
            counts = split_layers(layers, others, rooms)
        ends.check_split(whole, counts)
        held = [others + sum(layers[slice(*ends.span(counts, rank))]) for rank in range(size)]
        check_rooms(held, rooms, order.hosts)
        return counts


class FollowerStage:
    """A follower's stage of the model that `find` returns, with a runner for each lane.

    `group` is this process's once it has joined, before a model is loaded.
    """

    group: Group

    def __init__(self, find: Callable[[], ModelEntry]) -> None:
        self._find = find
        self._lanes: dict[int, Follower] = {}
        self._new_runner: Callable[[], Follower] = _without_model

    def carry_out(self, frame: Frame) -> dict[str, Any] | None:
        """Execute a frame of the leader; return the reply, if any.

        Raises NotFound, ModelError or StageError where this machine cannot serve the model.
        """
        match frame.kind:
            case Kind.CHECK:
                return self._check(frame.json())
            case Kind.LOAD:
                return self._load(frame.json())
            case Kind.PROBE:
                return self._probe()
            case Kind.LANE:
                self._lanes[frame.lane] = self._new_runner()
            case Kind.CLOSE:  # perhaps of a model that has been replaced
                if self._lanes.pop(frame.lane, None) is not None and not self._lanes:
                    self._free()
            case Kind.PLAN:
                self._lanes[frame.lane].follow(Plan.from_bytes(frame.payload))
            case _:
                raise StageError("stage.protocol", detail=f"{frame.kind.name} was not due")
        return None

    def _check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Compare the model with the leader's; a model loaded before is replaced."""
        self._free()
        self._entry = self._find()
        if self._entry.id != asked["model"]:
            raise StageError("stage.other_model", leader=asked["model"], follower=self._entry.id)
        check_same(self._entry.id, asked["fingerprint"], fingerprint(self._entry.path))
        return {}

    def _load(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Read the layers of this rank; return their bytes."""
        model, *_ = open_model(self._entry.path, order["dtype"], trusted=order["trusted"])
        kv_bits = order["kv_bits"]
        facts = facts_of(model, order["vocab_size"], cache_maker(model), kv_bits)
        body = cut(model, self.group, order["counts"])
        self._new_runner = partial(Follower, body, cache_maker(model, kv_bits), facts, self.group)
        return {"weights_bytes": run_through(read_weights(model))}

    def _probe(self) -> dict[str, Any]:
        """Run the leader's probe passes; return the layout of own caches."""
        runner = self._new_runner()
        forward_failure(runner.model, runner.make_cache, runner.facts.vocab_size)
        probed = probed_in_stages(runner.facts, runner.model, runner.make_cache)
        return {"layout": asdict(probed.layout)}

    def _free(self) -> None:
        self._lanes, self._new_runner = {}, _without_model
        release_memory()


def _without_model() -> Follower:
    raise StageError("stage.protocol", detail="no model has been loaded")


def cut(model: nn.Module, group: Group, counts: Sequence[int]) -> Any:
    """Reduce a lazily opened model to this rank's part; return the module a follower runs.

    The module is the body; with tensor parallelism the model, whose head may be in parts, too.
    """
    if not group.tensor:
        return ends.place(model, group.rank, counts)
    ends.shard(model, mx.distributed.init())
    return model


def _largest(own: Layout, probes: Mapping[int, Mapping[str, Any]], rooms: Sequence[int]) -> Layout:
    """Return a layout under which a cache that fits here fits on every rank.

    `rooms` are the bytes left by rank: bytes of a rank with less room count for more.
    """
    layouts = [own, *(Layout(**probe["layout"]) for probe in probes.values())]
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


def split_layers(layers: Sequence[int], others: int, rooms: Sequence[int]) -> list[int]:
    """Return the layers of each rank, rank 0 the last ones, balanced by room.

    `layers` are bytes by layer, `others` bytes that every rank holds, `rooms` bytes that each rank
    has for a model. Raises StageError if there are fewer layers than ranks.
    """
    size = len(rooms)
    if len(layers) < size:
        raise StageError("stage.too_many", layers=len(layers), ranks=size)
    free = [max(1, room - others) for room in rooms]
    ends, counts, first = [0, *accumulate(layers)], [0] * size, 0
    # The last rank has the first layers: fill from there, leaving one layer for each rank to come.
    for rank in range(size - 1, 0, -1):
        share = ends[-1] * sum(free[rank:]) / sum(free)
        stops = range(first + 1, len(layers) - rank + 1)
        stop = min(stops, key=lambda stop: abs(ends[stop] - share))
        counts[rank], first = stop - first, stop
    counts[0] = len(layers) - first
    return counts


def check_rooms(weights: Sequence[int], rooms: Sequence[int], hosts: Sequence[str]) -> None:
    """Raise StageError for the first rank whose room is smaller than its weights. All by rank."""
    for rank, (need, room, host) in enumerate(zip(weights, rooms, hosts, strict=True)):
        if need > room:
            nbytes = {"need_gb": need, "room_gb": room}
            sizes: dict[str, Any] = {name: round(n / (1 << 30), 2) for name, n in nbytes.items()}
            raise StageError("stage.no_room", rank=rank, host=host, **sizes)


def check_counts(counts: Sequence[int], layers: int, ranks: int) -> None:
    """Raise StageError unless `counts` gives every rank a layer, and all layers a rank."""
    if len(counts) != ranks or min(counts) < 1 or sum(counts) != layers:
        given = ",".join(map(str, counts))
        raise StageError("stage.layers", given=given, layers=layers, ranks=ranks)
