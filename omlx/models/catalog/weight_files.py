"""Integrity of safetensors files: checked before mlx maps them, which a truncated file would crash.

Format: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape,
data_offsets), the data.
"""

from __future__ import annotations

import json
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
            header = stream.read(length)
    except OSError as error:
        raise ModelError("model.unreadable", detail=f"{file.name}: {error.strerror}") from None
    tensors, data_bytes = _declared(header, file.name)
    promised = 8 + length + data_bytes
    if size < promised:
        raise ModelError("model.truncated", file=file.name, size=size, promised=promised)
    return tensors


def _declared(header: bytes, name: str) -> tuple[int, int]:
    """Return how many tensors the header declares, and how many bytes of data."""
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        ends = [int(tensor["data_offsets"][1]) for tensor in tensors.values()]
        return len(ends), max(ends, default=0)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ModelError("model.not_safetensors", file=name) from None
