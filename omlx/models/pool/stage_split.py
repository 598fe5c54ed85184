"""Which rank of a pipeline holds how many layers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from omlx.errors import StageError
from omlx.models.catalog.weight_files import weight_files

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def layer_bytes(directory: Path, layers: int) -> tuple[list[int], int]:
    """Return the bytes of each layer's weights, and of all others, by the safetensors headers."""
    by_layer, others = [0] * layers, 0
    for file in weight_files(directory):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            match = _LAYER.search(name)
            if match is not None and int(match[1]) < layers:
                by_layer[int(match[1])] += end - start
            else:
                others += end - start
    return by_layer, others


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
    total, counts, first = sum(layers), [0] * size, 0
    # The last rank has the first layers: fill from there, leaving one layer for each rank to come.
    for rank in range(size - 1, 0, -1):
        share = total * free[rank] / sum(free)
        taken = held = 0
        while first + taken < len(layers) - rank:
            following = layers[first + taken]
            if taken and held + following / 2 > share:
                break
            held += following
            taken += 1
        counts[rank], first = taken, first + taken
    counts[0] = len(layers) - first
    return counts


def check_rooms(weights: Sequence[int], rooms: Sequence[int], hosts: Sequence[str]) -> None:
    """Raise StageError for the first rank whose room is smaller than its weights. All by rank."""
    for rank, (need, room, host) in enumerate(zip(weights, rooms, hosts, strict=True)):
        if need > room:
            sizes: dict[str, Any] = {"need_gb": _gibibytes(need), "room_gb": _gibibytes(room)}
            raise StageError("stage.no_room", rank=rank, host=host, **sizes)


def _gibibytes(nbytes: int) -> float:
    return round(nbytes / (1 << 30), 2)


def check_counts(counts: Sequence[int], layers: int, ranks: int) -> None:
    """Raise StageError unless `counts` gives every rank a layer, and all layers a rank."""
    if len(counts) != ranks or min(counts) < 1 or sum(counts) != layers:
        given = ",".join(map(str, counts))
        raise StageError("stage.layers", given=given, layers=layers, ranks=ranks)
