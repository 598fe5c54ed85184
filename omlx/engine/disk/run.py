"""Which records restore the longest prefix, and adjacent ones joined into longer runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from string import ascii_letters
from typing import TypeAlias

from omlx.engine.disk.files import Place
from omlx.engine.disk.record import Record, RecordId, Spec
from omlx.engine.piece import Kind, Layout


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [start, stop) of a record: records may overlap."""

    id: RecordId
    place: Place
    start: int
    stop: int

    @property
    def kind(self) -> Kind:
        return self.id.kind

    @property
    def whole(self) -> bool:
        return (self.start, self.stop) == (self.id.start, self.id.stop)


def longest_cover(
    records: Iterable[tuple[RecordId, Place]], layout: Layout, longest: int
) -> tuple[int, list[Part]]:
    """Return the longest prefix of at most `longest` tokens that records restore, and their parts
    in the order of the tokens: rows first. 0 and none if there is none.
    """
    kinds: dict[str, list[tuple[RecordId, Place]]] = {"rows": [], "window": [], "state": []}
    for record in records:
        kinds[record[0].kind].append(record)
    rows = _cover(kinds["rows"], 0, longest)
    reach = rows[-1].stop if rows else 0
    states = {id.stop: (id, place) for id, place in kinds["state"]}
    ends = {reach}
    if layout.recurrent:
        ends = set(states)
    elif layout.window is not None:
        ends = {id.stop for id, _ in kinds["window"]}
    for length in sorted((end for end in ends if 0 < end <= reach), reverse=True):
        parts = [part for part in rows if part.start < length]
        if layout.window is not None:
            first = max(0, length - layout.window)
            windows = _cover(kinds["window"], first, length)
            if not windows or windows[-1].stop < length:
                continue
            parts += windows
        if layout.recurrent:
            id, place = states[length]
            parts.append(Part(id, place, id.start, id.stop))
        return length, parts
    return 0, []


def _cover(records: Sequence[tuple[RecordId, Place]], start: int, stop: int) -> list[Part]:
    """Return parts that cover [start, stop) without a gap, or as much from its start as can be."""
    parts: list[Part] = []
    best: tuple[RecordId, Place] | None = None
    at = start
    for id, place in sorted(records, key=lambda record: record[0].start):
        if best is not None and id.start > at:
            parts.append(Part(*best, at, min(stop, best[0].stop)))
            at, best = parts[-1].stop, None
        if id.start <= at < id.stop and at < stop and (best is None or id.stop > best[0].stop):
            best = (id, place)
    if best is not None:
        parts.append(Part(*best, at, min(stop, best[0].stop)))
    return parts


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
