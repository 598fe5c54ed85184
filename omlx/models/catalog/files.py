"""Files of a model directory: configs, chat templates, headers of weights.

safetensors: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape,
data_offsets), the data. Checked before mlx maps a file: mapping a truncated file would crash.

Chat templates, of which the first of a name counts:
    chat_template.jinja, additional_chat_templates/NAME.jinja     transformers, newer
    tokenizer_config.json: a text, or a list of named ones        transformers, older
    chat_template.json, processor_config.json                     processors, if there is none yet
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from stat import S_ISDIR
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple

from omlx.errors import ModelError, ModelGone, Param, Reason

CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER: Final = "adapters.safetensors"
"""LoRA layers of mlx-lm, beside the weights of their base model."""
GENERATION_CONFIG: Final = "generation_config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
PROCESSOR_CONFIG: Final = "processor_config.json"
DEFAULT: Final = "default"
_TEMPLATE_FILE: Final = "chat_template.jinja"
_TEMPLATE_FOLDER: Final = "additional_chat_templates"
_TEMPLATE: Final = "chat_template"

MAX_CONFIG_BYTES: Final = 16 << 20
"""Bytes — configs with settings for thousands of layers have less than 1 MB."""
MAX_INDEX_BYTES: Final = 64 << 20
"""Bytes — an index names each tensor: about 10 MB for 100,000 tensors."""
MAX_BYTES: Final = 256 << 20
"""Bytes — the largest tokenizers, of 260,000 tokens, have 35 MB."""
_SUFFIXES: Final = frozenset({".jinja", ".json", ".model", ".txt"})

_LAYER: Final = re.compile(r"(?<=\.)\d+(?=\.)")

SNAPSHOTS: Final = 1024
"""Folders — some KB of facts each are kept in memory."""

T = TypeVar("T")
Args = TypeVarTuple("Args")
_Stamp: TypeAlias = tuple[tuple[str, tuple[int, int, int, int] | None], ...]
"""Names with inode, size, modification and change time; None for a broken link."""


@dataclass(frozen=True)
class ModelFiles:
    """Snapshot of a model directory, the only reader of its files. Thread-safe.

    Snapshots are equal as long as no file has changed.
    """

    directory: Path
    stamp: _Stamp = field(repr=False)
    _facts: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def at(cls, directory: Path) -> ModelFiles:
        """Return the current snapshot of a directory. Stats every file."""
        current = cls(directory, _stamp(directory))
        with _lock:
            known = _snapshots.pop(directory, current)
            files = _snapshots[directory] = known if known == current else current
            if len(_snapshots) > SNAPSHOTS:
                del _snapshots[next(iter(_snapshots))]
        return files

    @classmethod
    def recent(cls, directory: Path) -> ModelFiles:
        """Return the latest snapshot, as taken by discovery, without stats."""
        return _snapshots.get(directory) or cls.at(directory)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Content of config.json, empty without the file. Raises ModelError."""
        return self.json(CONFIG)

    def json(self, name: str) -> dict[str, Any]:
        """Read a JSON object, empty without the file. Raises ModelError for other content."""
        return read_json(self.directory / name)

    def has(self, name: str) -> bool:
        return (self.directory / name).is_file()

    @property
    def created(self) -> int:
        """Seconds since 1970 — modification time of the config; 0 without the file."""
        try:
            return int((self.directory / CONFIG).stat().st_mtime)
        except OSError:
            return 0

    @cached_property
    def weights(self) -> Sequence[Path]:
        """Weight files, by name. Raises ModelError without any."""
        files = sorted(self.directory.glob("model*.safetensors"))
        if not files:
            raise ModelError("model.no_weights")
        return files

    @cached_property
    def tensors(self) -> Tensors:
        """Summary of the tensors of all weights. Reads headers; raises ModelError."""
        return _summary(map(read_header, self.weights))

    def templates(self) -> dict[str, str]:
        """Return chat templates by name, `default` for chats; empty without any.

        Raises ModelError for unreadable files.
        """
        named = _named(self.json(TOKENIZER_CONFIG).get(_TEMPLATE)) | self._template_files()
        for name in ("chat_template.json", PROCESSOR_CONFIG):
            named = named or _named(self.json(name).get(_TEMPLATE))
        return {DEFAULT: next(iter(named.values()))} if len(named) == 1 else named

    def _template_files(self) -> dict[str, str]:
        folder = self.directory / _TEMPLATE_FOLDER
        paths = {path.stem: path for path in sorted(folder.glob("*.jinja"))}
        paths[DEFAULT] = self.directory / _TEMPLATE_FILE
        return {name: _read(path) for name, path in paths.items() if path.is_file()}


def once(read: Callable[[ModelFiles, *Args], T]) -> Callable[[ModelFiles, *Args], T]:
    """Keep the results of `read`, which are facts of files alone, for each snapshot.

    Two threads may at worst compute the same fact. Raises as `read`, again each time.
    """

    @wraps(read)
    def known(files: ModelFiles, *args: *Args) -> T:
        key = (read, *args)
        if key not in files._facts:
            files._facts[key] = read(files, *args)
        fact: T = files._facts[key]
        return fact

    return known


_snapshots: Final[dict[Path, ModelFiles]] = {}
"""Snapshots by directory, the most recently used last."""
_lock: Final = Lock()


def download_folders(directory: Path) -> list[Path]:
    """Return the folders in which download clients keep unfinished files of a model directory."""
    folders = [directory / ".cache/huggingface/download"]
    if directory.parent.name == "snapshots":
        folders.append(directory.parent.parent / "blobs")
    return folders


def _stamp(directory: Path) -> _Stamp:
    folders = (directory, *download_folders(directory))
    return tuple(stamp for folder in folders for stamp in _stamps(folder))


def _stamps(folder: Path | str, depth: int = 1) -> list[tuple[str, Any]]:
    """Return the stamps of a folder and its subfolders; none for a missing folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    stamps: list[tuple[str, Any]] = []
    for name in names:
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
        except OSError:
            stamps.append((name, None))
            continue
        changed = status.st_mtime_ns, status.st_ctime_ns
        stamps.append((name, (status.st_ino, status.st_size, *changed)))
        if depth and S_ISDIR(status.st_mode) and not name.startswith("."):
            stamps += _stamps(path, depth - 1)
    return stamps


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty without the file. Raises ModelError for other
    content.
    """
    try:
        return read_object(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=path.name, detail=str(error)) from None


def read_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, and ValueError for other content."""
    if path.stat().st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes >> 20} MB")
    return json_object(path.read_text(encoding="utf-8"))


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises ValueError for other JSON, and for strings that are not Unicode text.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    json.dumps(content, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    return content


def check_files(directory: Path) -> None:
    """Raise ModelError for a missing folder, or for a pipe, device or giant file inside."""
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        raise ModelGone("model.folder_missing") from None
    except OSError as error:
        raise ModelError("model.unreadable", detail=str(error.strerror)) from None
    for path in paths:
        if path.suffix not in _SUFFIXES or not path.exists():
            continue
        if not path.is_file():
            raise ModelError("model.not_a_file", file=path.name)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ModelError(
                "model.file_too_large", file=path.name, size=size >> 20, limit=MAX_BYTES >> 20
            )


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of all files: their `count`, and `kinds`, names with `#` for the layer number.

    `dense` counts unquantized parameters, `scales` the scales of quantized ones. `truncated` names
    a file shorter than its header promises.
    """

    count: int
    kinds: frozenset[str]
    dense: int
    scales: int
    truncated: Reason | None

    def parameters(self, group_size: int) -> int:
        """Count parameters; a scale accounts for `group_size` values."""
        return self.dense + self.scales * group_size

    def names_any(self, *parts: str) -> bool:
        """Return whether any tensor name contains any of `parts`."""
        return any(part in kind for kind in self.kinds for part in parts)


_MAX_HEADER_BYTES = 100 << 20
_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Header:
    """Shape and bytes of each tensor of a file, and all dtypes as written (`BF16`).

    `truncated` if the data is incomplete.
    """

    shapes: Mapping[str, Sequence[int]]
    sizes: Mapping[str, int]
    truncated: Reason | None
    dtypes: frozenset[str] = frozenset()


def whole_header(file: Path) -> Header:
    """Return the header of a complete safetensors file. Raises ModelError."""
    header = read_header(file)
    if header.truncated is not None:
        raise ModelError(header.truncated.code, param=None, **header.truncated.params)
    return header


def read_header(file: Path) -> Header:
    """Return the header of a safetensors file, complete or not. Raises ModelError."""
    if file.exists() and not file.is_file():  # reading a pipe may block
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
        dtypes = frozenset(str(tensor.get("dtype")) for tensor in tensors.values())
        end = max((stop for _, stop in places.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ModelError("model.not_safetensors", file=file.name) from None
    truncated, promised = None, 8 + length + end
    if size < promised:
        params: dict[str, Param] = {"file": file.name, "size": size, "promised": promised}
        truncated = Reason("model.truncated", params)
    return Header(shapes, sizes, truncated, dtypes)


def _summary(headers: Iterable[Header]) -> Tensors:
    """Summarise headers. Tensors with the same name count once, with the last shape."""
    shapes: dict[str, Sequence[int]] = {}
    count, truncated = 0, None
    for header in headers:
        shapes |= header.shapes
        count += len(header.shapes)
        truncated = truncated or header.truncated
    dense = scales = 0
    for name, shape in shapes.items():
        layer, _, kind = name.rpartition(".")
        if f"{layer}.scales" not in shapes or kind == "bias":
            dense += math.prod(shape)
        elif kind == "scales":
            scales += math.prod(shape)
    kinds = frozenset(_LAYER.sub("#", name) for name in shapes)
    return Tensors(count, kinds, dense, scales, truncated)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES >> 20} MB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=path.name, detail=str(error)) from None


def _named(value: Any) -> dict[str, str]:
    """Return the templates in a JSON value: a text, texts by name, or a list of both."""
    match value:
        case str():
            return {DEFAULT: value}
        case Mapping():
            return {name: text for name, text in value.items() if isinstance(text, str)}
        case list():
            pairs = [(one.get("name"), one.get("template")) for one in value if type(one) is dict]
            return {str(name or DEFAULT): text for name, text in pairs if isinstance(text, str)}
        case _:
            return {}
