"""Header of a GGUF file: metadata, and name, shape and type of each tensor.

Checked before mlx maps the file: its reader trusts every length and offset.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, NoReturn

from omlx.errors import ModelError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_DIMENSIONS: Final = 4
_ALIGNMENT: Final = "general.alignment"
_NUMBERS: Final = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct`, by metadata value type."""
_STRING, _ARRAY = 8, 9

BLOCKS: Final = {"F32": (1, 4), "F16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34)}
"""Values and bytes per block, of the types that mlx reads unconverted."""
_TYPES: Final = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"}
_OTHER_TYPES: Final = {10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor with `shape` rows first, as in mlx; `type` is a key of `BLOCKS`."""

    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True, slots=True)
class Header:
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_header(file: Path) -> Header:
    """Read and check the header of a GGUF file.

    Raises ModelError for another format, for a truncated file, and for tensor types that mlx does
    not read unconverted.
    """
    if not file.is_file():
        raise ModelError("gguf.no_file", file=str(file))
    try:
        with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
            return _Reader(data, file.name).header()
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise ModelError("gguf.damaged", file=file.name, detail=str(error)) from None


class _Reader:
    """Sequential reader; every length is checked against the remaining bytes."""

    def __init__(self, data: mmap, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0

    def header(self) -> Header:
        if self._data[:4] != _MAGIC:
            raise ModelError("gguf.other_format", file=self._name)
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            self._damaged(f"version {version}")
        tensors, values = self._number("Q"), self._number("Q")
        if tensors + values > len(self._data):
            self._damaged(f"{tensors} tensors and {values} values")
        metadata = {}
        for _ in range(values):
            key = self._string()
            metadata[key] = self._value(self._number("I"), key)
        return Header(metadata, self._tensors(tensors, metadata.get(_ALIGNMENT, 32)))

    def _tensors(self, count: int, alignment: object) -> dict[str, Tensor]:
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            self._damaged(f"{_ALIGNMENT} = {alignment}")
        tensors, ends = {}, [0]
        for _ in range(count):
            name, dimensions = self._string(), self._number("I")
            if not 1 <= dimensions <= _MAX_DIMENSIONS or name in tensors:
                self._damaged(f"tensor {name!r}")
            shape = tuple(self._number("Q") for _ in range(dimensions))
            number, offset = self._number("I"), self._number("Q")
            kind = _TYPES.get(number) or _OTHER_TYPES.get(number) or str(number)
            if kind not in BLOCKS:
                supported = ", ".join(BLOCKS)
                raise ModelError("gguf.quantization", tensor=name, type=kind, supported=supported)
            values, size = BLOCKS[kind]
            if 0 in shape or shape[0] % values or offset % alignment:
                self._damaged(f"tensor {name!r}")
            ends.append(offset + math.prod(shape) // values * size)
            tensors[name] = Tensor(tuple(reversed(shape)), kind)
        start = -(-self._at // alignment) * alignment
        promised = start + max(ends)
        if promised > len(self._data):
            self._truncated(promised)
        return tensors

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            self._damaged(f"{key}: type {kind}")
        inner, count = self._number("I"), self._number("Q")
        if inner in _NUMBERS:
            form = _NUMBERS[inner]
            found = self._bytes(count * struct.calcsize(f"<{form}"))
            return list(struct.unpack(f"<{count}{form}", found))
        if inner != _STRING:
            self._damaged(f"{key}: type {inner}")
        self._check(8 * count)
        return [self._string() for _ in range(count)]

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))[0]

    def _string(self) -> str:
        raw = self._bytes(self._number("Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._damaged("a text that is not UTF-8")

    def _bytes(self, count: int) -> bytes:
        self._check(count)
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def _check(self, count: int) -> None:
        if self._at + count > len(self._data):
            self._truncated(self._at + count)

    def _truncated(self, promised: int) -> NoReturn:
        size = len(self._data)
        raise ModelError("model.truncated", file=self._name, size=size, promised=promised)

    def _damaged(self, detail: str) -> NoReturn:
        raise ModelError("gguf.damaged", file=self._name, detail=detail)
