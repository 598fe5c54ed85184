"""Which rank of a pipeline holds how many layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from omlx.errors import StageError


def split_layers(layers: Sequence[int], others: int, rooms: Sequence[int]) -> list[int]:
    """Return how many layers each rank holds, rank 0 the last ones, so that every rank's share of
    its room is about the same.

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
