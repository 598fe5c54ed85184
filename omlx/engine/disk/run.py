"""Records behind one another, as one: what was written block by block is read in longer runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from string import ascii_letters
from typing import TypeAlias

from omlx.engine.disk.cover import Part
from omlx.engine.disk.record import Record, Spec
from omlx.engine.piece import Kind

Buffer: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens [start, stop) of one kind of layer. `buffers` are those of the arrays in `spec`."""

    kind: Kind
    start: int
    stop: int
    spec: Spec
    buffers: Sequence[Buffer]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.buffers))


@dataclass(frozen=True, slots=True)
class _Place:
    """Bytes [start, stop) of a body, which hold an array of this shape."""

    start: int
    stop: int
    shape: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Form:
    """The arrays in a body: their spec as if they had no rows, and their places."""

    rowless: Spec
    places: Sequence[_Place]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A record whose form is known, of which a part is wanted."""

    part: Part
    body: memoryview
    spec: Spec
    form: _Form


def join(read: Iterable[tuple[Part, Record]]) -> Iterator[Run]:
    """Yield the wanted parts of adjacent records, as one run where they can be joined.

    Copies, unless a run is one whole record.
    """
    for _, alike in groupby(_opened(read), key=lambda record: record.form.rowless):
        yield _join(list(alike))


def _opened(read: Iterable[tuple[Part, Record]]) -> Iterator[_Opened]:
    spec, form = None, _Form(None, ())
    for part, record in read:
        if record.spec != spec:  # those of whole blocks are all the same
            spec, form = record.spec, _form_of(record.spec)
        (body,) = record.buffers
        yield _Opened(part, memoryview(body), spec, form)


def _form_of(spec: Spec) -> _Form:
    places: list[_Place] = []
    at = 0
    for dtype, shape in _arrays_of(spec):
        digits = dtype.lstrip(ascii_letters)
        item_bytes = int(digits or 8) // 8  # "bool" has none
        places.append(_Place(at, at + item_bytes * prod(shape), shape))
        at = places[-1].stop
    return _Form(with_rows(spec, 0), places)


def _arrays_of(spec: Spec) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield type and shape of each array."""
    if isinstance(spec, dict):
        yield from spec.items()
    elif spec is not None:
        for part in spec[1:]:
            yield from _arrays_of(part)


def _join(records: Sequence[_Opened]) -> Run:
    first, last = records[0], records[-1]
    start, stop = first.part.start, last.part.stop
    if len(records) == 1 and first.part.whole:
        buffers = [first.body[place.start : place.stop] for place in first.form.places]
        return Run(first.part.kind, start, stop, first.spec, buffers)
    joined = [b"".join(_rows(records, i)) for i in range(len(first.form.places))]
    return Run(first.part.kind, start, stop, with_rows(first.spec, stop - start), joined)


def _rows(records: Sequence[_Opened], i: int) -> Iterator[memoryview]:
    """Yield the wanted rows of array `i` [..., rows, width] of all records, one behind the other in
    the array of all of them.
    """
    heads = prod(records[0].form.places[i].shape[:-2])
    spans: list[tuple[memoryview, int, int, int]] = []
    for record in records:
        place, part = record.form.places[i], record.part
        head_bytes = (place.stop - place.start) // heads
        row_bytes = head_bytes // place.shape[-2]
        first, last = part.start - part.id.start, part.stop - part.id.start
        array = record.body[place.start : place.stop]
        spans.append((array, head_bytes, row_bytes * first, row_bytes * last))
    for head in range(heads):
        for array, head_bytes, first, last in spans:
            offset = head * head_bytes
            yield array[offset + first : offset + last]


def with_rows(spec: Spec, rows: int) -> Spec:
    """Return a spec of arrays [..., rows, width] with so many rows."""
    if spec is None:
        return None
    if isinstance(spec, dict):
        return {dtype: [*shape[:-2], rows, *shape[-1:]] for dtype, shape in spec.items()}
    return [spec[0], *(with_rows(part, rows) for part in spec[1:])]
