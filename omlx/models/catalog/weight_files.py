"""Whether safetensors files are whole, before anything maps them: a short file would end in zeros or a crash.

The format: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape, data_offsets), data.
"""

from __future__ import annotations

import json
from pathlib import Path

from omlx.errors import ModelError

_LONGEST_HEADER = 100 << 20
_LFS = b"version https://git-lfs"


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the model's weights. Raises ModelError if there are none."""
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise ModelError("model.no_weights")
    return files


def check_whole(file: Path) -> None:
    """Raise ModelError if the file is not a whole safetensors file. Reads its header only."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(len(_LFS))
            if start == _LFS:
                raise ModelError("model.lfs_pointer", file=file.name)
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > min(size, _LONGEST_HEADER):
                raise ModelError("model.not_safetensors", file=file.name)
            stream.seek(8)
            header = stream.read(length)
    except OSError as error:
        raise ModelError("model.unreadable", detail=f"{file.name}: {error.strerror}") from None
    promised = 8 + length + _data_bytes(header, file.name)
    if size < promised:
        raise ModelError("model.truncated", file=file.name, size=size, promised=promised)


def _data_bytes(header: bytes, name: str) -> int:
    """How many bytes of data the header promises."""
    try:
        tensors = json.loads(header)
        return max(
            (
                end
                for key, tensor in tensors.items()
                if key != "__metadata__"
                for end in [_end(tensor)]
            ),
            default=0,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelError("model.not_safetensors", file=name) from None


def _end(tensor: dict[str, list[int]]) -> int:
    _, end = tensor["data_offsets"]
    return int(end)
