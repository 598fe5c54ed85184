"""Integrity of safetensors files: checked before mlx maps them, which a truncated file would crash.

Format: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape,
data_offsets), the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx.errors import ModelError

_MAX_HEADER_BYTES = 100 << 20
_LFS = b"version https://git-lfs"


def weight_files(directory: Path) -> list[Path]:
    """Return the files of the model's weights, by name. Raises ModelError if there are none."""
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise ModelError("model.no_weights")
    return files


def check_whole(file: Path) -> int:
    """Return how many tensors a safetensors file has. Raises ModelError unless it is complete.

    Reads its header only.
    """
    header = _read_header(file)
    if header.file_bytes < header.promised_bytes:
        size, promised = header.file_bytes, header.promised_bytes
        raise ModelError("model.truncated", file=file.name, size=size, promised=promised)
    return len(header.shapes)


def tensor_names(file: Path) -> list[str]:
    """Return the names of the tensors of a safetensors file. Raises ModelError."""
    return list(_read_header(file).shapes)


def tensor_bytes(file: Path) -> Mapping[str, int]:
    """Return the bytes of each tensor of a safetensors file, by name. Raises ModelError."""
    return _read_header(file).sizes


def count_parameters(files: Iterable[Path], group_size: int) -> int:
    """Return the number of parameters in safetensors files. Reads headers; raises ModelError.

    A quantized weight counts as what it stands for: `group_size` values for each of its scales.
    """
    shapes: dict[str, Sequence[int]] = {}
    for file in files:
        shapes |= _read_header(file).shapes
    total = 0
    for name, shape in shapes.items():
        layer, _, kind = name.rpartition(".")
        scales = shapes.get(f"{layer}.scales")
        if scales is None:
            total += math.prod(shape)
        elif kind == "scales":
            total += math.prod(scales) * group_size
        elif kind == "bias":
            total += math.prod(shape)
    return total


@dataclass(frozen=True, slots=True)
class _Header:
    """Shape and bytes of each tensor, the bytes of the file, and those that its tensors need."""

    shapes: Mapping[str, Sequence[int]]
    sizes: Mapping[str, int]
    file_bytes: int
    promised_bytes: int


def _read_header(file: Path) -> _Header:
    """Raises ModelError for another format."""
    if file.exists() and not file.is_file():  # the end of a pipe may never come
        raise ModelError("model.not_a_file", file=file.name)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(len(_LFS))
            if start == _LFS:
                raise ModelError("model.lfs_pointer", file=file.name)
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > min(size, _MAX_HEADER_BYTES):
                raise ModelError("model.not_safetensors", file=file.name)
            stream.seek(8)
            text = stream.read(length)
    except OSError as error:
        raise ModelError("model.unreadable", detail=f"{file.name}: {error.strerror}") from None
    try:
        tensors = json.loads(text)
        tensors.pop("__metadata__", None)
        shapes = {name: tuple(map(int, tensor["shape"])) for name, tensor in tensors.items()}
        places = {name: tuple(map(int, t["data_offsets"])) for name, t in tensors.items()}
        sizes = {name: stop - start for name, (start, stop) in places.items()}
        end = max((stop for _, stop in places.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ModelError("model.not_safetensors", file=file.name) from None
    return _Header(shapes, sizes, size, 8 + length + end)
