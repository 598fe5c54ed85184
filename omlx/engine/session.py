"""Prefix states of a conversation: read from a model's disk store, and written into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import mlx.core as mx

from omlx.engine.device.gpu import device_kind
from omlx.engine.device.model import Cache, Model, copy_state, span_of
from omlx.engine.device.payloads import copy, of_kind
from omlx.engine.disk.record import FORMAT, Part, Record, Spec, TokenChain, nbytes_of, with_rows
from omlx.engine.disk.serial import spec_of
from omlx.engine.disk.tier import DiskTier
from omlx.engine.disk.worker import DiskWorker
from omlx.engine.loop import EngineLoop
from omlx.engine.piece import Kind, Piece
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.errors import Reason


@dataclass(frozen=True, slots=True)
class StateStore:
    """Stored prefix states of a loaded model.

    `facts`: cache layout and device. `specs`: types and shapes of the arrays by kind; `growth`:
    those of states that grow. The engine thread alone may call `prefix` and `tier`, any thread may
    call the others.
    """

    facts: Mapping[str, str]
    block_tokens: int
    prefix: PrefixReuse
    tier: DiskTier
    _specs: Mapping[Kind, Spec]
    _growth: Growth | None

    @property
    def worker(self) -> DiskWorker:
        """Reads and writes records."""
        return self.tier.worker

    def find(self, tokens: Sequence[int]) -> Future[tuple[int, list[Part]] | None]:
        """Find the longest stored prefix of `tokens` and its parts, once all writes are done."""
        chain, layout = TokenChain(tokens, self.block_tokens), self.prefix.layout
        return self.worker.ask(lambda store: store.find(chain, layout, len(tokens)))

    def fits(self, record: Record) -> bool:
        """Whether a record has types, shapes and size of this model's arrays."""
        id = record.id
        spec = self._specs.get(id.kind)
        if id.kind != "state":
            alike = bool(record.spec == with_rows(spec, id.stop - id.start))
        elif self._growth is None:
            alike = bool(record.spec == spec)
        else:
            alike = self._growth.fits(record.spec, id.stop)
        return alike and record.nbytes == nbytes_of(record.spec)


@dataclass(frozen=True, slots=True)
class Growth:
    """Types and shapes of growing states, once and twice `span` tokens behind two."""

    span: int
    early: Spec
    late: Spec

    def fits(self, spec: Spec, tokens: int) -> bool:
        """Whether a spec is that of a state at `tokens` tokens."""
        return self._alike(spec, self.early, self.late, tokens)

    def _alike(self, spec: Spec, early: Spec, late: Spec, tokens: int) -> bool:
        if spec is None or early is None or late is None:  # pools are empty at first
            return spec is None and (late is None or tokens < self.span)
        if isinstance(late, dict):
            ((dtype, before),), ((_, behind),) = early.items(), late.items()
            shape = spec.get(dtype) if isinstance(spec, dict) and len(spec) == 1 else None
            if not isinstance(shape, list) or len(shape) != len(behind):
                return False
            sizes = zip(shape, before, behind, strict=True)
            return all(self._sized(*each, tokens) for each in sizes)
        if not isinstance(spec, list) or len(spec) != len(late) or spec[0] != late[0]:
            return False
        parts = zip(spec[1:], early[1:], late[1:], strict=True)
        return all(self._alike(*part, tokens) for part in parts)

    def _sized(self, size: object, early: int, late: int, tokens: int) -> bool:
        """Whether a dimension has its size at `tokens` tokens."""
        grown = tokens * (late - early) // self.span
        return type(size) is int and size == (late if early == late else grown)


def open_states(loop: EngineLoop) -> StateStore | Reason:
    """Return the stored states of a model, or the reason for none. Requires the engine thread.

    Computes a pass over two tokens, and over two entries of states that grow.
    """
    prefix = loop.scheduler.prefix
    off = prefix.off_reason or prefix.stats().disk.off
    if off is not None or prefix.disk is None:
        return off or Reason("prefix.disk.off.setting")
    loaded = loop.for_texts
    cache = loaded.make_cache()
    mx.eval(loaded.model(mx.array([[0, 0]]), cache=cache))
    specs: dict[Kind, Spec] = {}
    for kind in ("rows", "window", "state"):
        piece = Piece(0, kind, 1, 2)
        specs[kind] = spec_of(tuple(copy(leaf, piece) for leaf in of_kind(cache, kind)), [])
    layout = repr(prefix.layout)
    facts = {"format": str(FORMAT), "layout": layout, "device": device_kind()}
    block_tokens = prefix.index.block_tokens
    growth = _growth(loaded.model, cache) if prefix.layout.growth_bytes else None
    return StateStore(facts, block_tokens, prefix, prefix.disk, specs, growth)


def _growth(model: Model, cache: Cache) -> Growth:
    """Measure states that grow, behind two tokens."""
    states = of_kind(cache, "state")
    span = span_of(states)
    specs = []
    for _ in range(2):
        mx.eval(model(mx.zeros((1, span), mx.int32), cache=cache))
        specs.append(spec_of(tuple(map(copy_state, states)), []))
    return Growth(span, *specs)
