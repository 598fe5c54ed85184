"""Arrays of cache pieces as bytes, and back. Only the engine thread may call: it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from omlx.engine.disk.record import Buffer, Record, RecordId, Run, Spec, with_rows

Arrays: TypeAlias = Any
"""Arrays in nested lists and tuples, with None where a layer has none."""


def to_record(id: RecordId, arrays: Arrays, rows: slice | None) -> Record:
    """Copy these rows of computed arrays [..., rows, width] into bytes; None: all of any arrays."""
    flat: list[mx.array] = []
    spec = spec_of(arrays, flat)
    raw = [array.reshape(-1).view(mx.uint8) for array in flat]
    mx.eval(raw)
    if rows is None:
        return Record(id, spec, [np.asarray(array).tobytes() for array in raw])
    buffers: list[bytes] = []
    for array, bare in zip(flat, raw, strict=True):
        buffers.append(np.asarray(bare).reshape(*array.shape[:-1], -1)[..., rows, :].tobytes())
    return Record(id, with_rows(spec, rows.stop - rows.start), buffers)


def to_arrays(run: Run) -> tuple[Arrays, ...]:
    """Return the arrays of a run that was read. Copies, but evaluates nothing."""
    return tuple(_arrays(run.spec, iter(run.buffers)))


def spec_of(arrays: Arrays, flat: list[mx.array]) -> Spec:
    """Describe nested arrays as JSON, and append them to `flat`."""
    if arrays is None:
        return None
    if isinstance(arrays, mx.array):
        flat.append(arrays)
        return {_name(arrays.dtype): list(arrays.shape)}
    return ["tuple" if isinstance(arrays, tuple) else "list", *(spec_of(a, flat) for a in arrays)]


def _arrays(spec: Spec, buffers: Iterator[Buffer]) -> Any:
    if spec is None:
        return None
    if isinstance(spec, dict):
        ((name, shape),) = spec.items()
        raw = np.frombuffer(next(buffers), np.uint8)
        return mx.array(raw).view(_DTYPES[name]).reshape(shape)
    kind, *parts = spec
    arrays = [_arrays(part, buffers) for part in parts]
    return tuple(arrays) if kind == "tuple" else arrays


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


_DTYPES = {_name(value): value for value in vars(mx).values() if isinstance(value, mx.Dtype)}
