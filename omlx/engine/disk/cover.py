"""Which records restore the longest prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx.engine.disk.record import RecordId
from omlx.engine.disk.segments import Place
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
