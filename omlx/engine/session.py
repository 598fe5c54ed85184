"""Prefix states of a conversation: read from a model's disk store, and written into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import mlx.core as mx

from omlx.engine.device.gpu import device_kind
from omlx.engine.device.payloads import copy, of_kind
from omlx.engine.disk.record import FORMAT, Part, Record, Spec, TokenChain, with_rows
from omlx.engine.disk.serial import spec_of
from omlx.engine.disk.tier import DiskTier
from omlx.engine.loop import EngineLoop
from omlx.engine.piece import Kind, Layout, Piece
from omlx.errors import Reason


@dataclass(frozen=True, slots=True)
class StateStore:
    """Stored prefix states of a loaded model.

    `facts`: cache layout and device. `specs`: types and shapes of the arrays by kind. Any thread
    may call, but for `hand_over`.
    """

    facts: Mapping[str, str]
    block_tokens: int
    _specs: Mapping[Kind, Spec]
    _layout: Layout
    _loop: EngineLoop
    _tier: DiskTier

    def hand_over(self, tokens: Sequence[int]) -> None:
        """Have the cached prefix of `tokens` written. Requires the engine thread."""
        self._loop.scheduler.prefix.write(tokens)

    def drain(self) -> bool:
        """Hand over one more piece. Return whether some are left. Requires the engine thread."""
        return self._tier.drain()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until the disk accepts more records."""
        return self._tier.worker.wait_for_room(seconds)

    def find(self, tokens: Sequence[int]) -> Future[tuple[int, list[Part]] | None]:
        """Find the longest stored prefix of `tokens` and its parts, once all writes are done."""
        chain, layout = TokenChain(tokens, self.block_tokens), self._layout
        return self._tier.worker.ask(lambda store: store.find(chain, layout, len(tokens)))

    def read(self, part: Part) -> Future[Record | None]:
        return self._tier.worker.ask(lambda store: store.read(part))

    def write(self, record: Record) -> None:
        self._tier.worker.write(record)

    @property
    def off(self) -> Reason | None:
        """Reason why nothing is read or written now."""
        return self._tier.stats().off

    def fits(self, record: Record) -> bool:
        """Whether a record has types, shapes and size of this model's arrays."""
        id = record.id
        spec = self._specs.get(id.kind)
        if id.kind != "state":
            return bool(record.spec == with_rows(spec, id.stop - id.start)) and self._whole(record)
        growing = self._layout.growth_bytes > 0
        return (growing or bool(record.spec == spec)) and self._whole(record)

    def _whole(self, record: Record) -> bool:
        id = record.id
        return record.nbytes == self._layout.nbytes(Piece(0, id.kind, id.start, id.stop))


def open_states(loop: EngineLoop) -> StateStore | Reason:
    """Return the stored states of a model, or the reason for none. Requires the engine thread.

    Computes a pass over two tokens.
    """
    prefix = loop.scheduler.prefix
    off = prefix.off_reason or prefix.stats().disk.off
    if off is not None or prefix.disk is None:
        return off or Reason("prefix.disk.off.setting")
    loaded = loop.loaded
    cache = loaded.make_cache()
    mx.eval(loaded.model(mx.array([[0, 0]]), cache=cache))
    specs: dict[Kind, Spec] = {}
    for kind in ("rows", "window", "state"):
        piece = Piece(0, kind, 1, 2)
        specs[kind] = spec_of(tuple(copy(leaf, piece) for leaf in of_kind(cache, kind)), [])
    layout = repr(prefix.layout)
    facts = {"format": str(FORMAT), "layout": layout, "device": device_kind()}
    block_tokens = prefix.index.block_tokens
    return StateStore(facts, block_tokens, specs, prefix.layout, loop, prefix.disk)
