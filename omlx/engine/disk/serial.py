"""Arrays of cache pieces as bytes, and back. Only the engine thread may call: it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from omlx.engine.disk.cover import Part
from omlx.engine.disk.record import Record, RecordId, Spec

Arrays: TypeAlias = Any
"""Arrays in nested lists and tuples, with None where a layer has none."""


def to_record(id: RecordId, arrays: Arrays) -> Record:
    """Copy computed arrays into bytes."""
    flat: list[mx.array] = []
    spec = _spec(arrays, flat)
    raw = [array.reshape(-1).view(mx.uint8) for array in flat]
    mx.eval(raw)
    return Record(id, spec, [np.asarray(array).tobytes() for array in raw])


def to_arrays(part: Part, record: Record) -> tuple[Arrays, ...]:
    """Return the arrays of a part of a record that was read. Copies, but evaluates nothing."""
    (body,) = record.buffers
    layers = _arrays(record.spec, _Reader(memoryview(body)))
    id = record.id
    if id.kind != "state" and (part.start, part.stop) != (id.start, id.stop):
        first, last = part.start - id.start, part.stop - id.start
        layers = [layer and _rows(layer, first, last) for layer in layers]
    return tuple(layers)


def _rows(layer: Arrays, first: int, last: int) -> Arrays:
    return tree_map(lambda array: array[..., first:last, :], layer)


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def take(self, dtype: mx.Dtype, shape: Sequence[int]) -> mx.array:
        count = dtype.size
        for size in shape:
            count *= size
        raw = np.frombuffer(self._body, np.uint8, count, self._at)
        self._at += count
        return mx.array(raw).view(dtype).reshape(shape)


def _spec(arrays: Arrays, flat: list[mx.array]) -> Spec:
    """Describe nested arrays as JSON, and append them to `flat`."""
    if arrays is None:
        return None
    if isinstance(arrays, mx.array):
        flat.append(arrays)
        return {_name(arrays.dtype): list(arrays.shape)}
    return ["tuple" if isinstance(arrays, tuple) else "list", *(_spec(a, flat) for a in arrays)]


def _arrays(spec: Spec, reader: _Reader) -> Any:
    if spec is None:
        return None
    if isinstance(spec, dict):
        ((name, shape),) = spec.items()
        return reader.take(_DTYPES[name], shape)
    kind, *parts = spec
    arrays = [_arrays(part, reader) for part in parts]
    return tuple(arrays) if kind == "tuple" else arrays


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


_DTYPES = {
    _name(dtype): dtype
    for dtype in (
        mx.bool_,
        mx.uint8,
        mx.uint16,
        mx.uint32,
        mx.uint64,
        mx.int8,
        mx.int16,
        mx.int32,
        mx.int64,
        mx.float16,
        mx.float32,
        mx.bfloat16,
        mx.complex64,
    )
}
