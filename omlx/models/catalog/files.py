"""The files of a model directory: configs, chat templates, weights' headers, stamps, fingerprints.

safetensors: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape,
data_offsets), the data. Checked before mlx maps a file, which a truncated one would crash.

Chat templates, of which the first of a name counts:
    chat_template.jinja, additional_chat_templates/NAME.jinja     transformers, newer
    tokenizer_config.json: a text, or a list of named ones        transformers, older
    chat_template.json, processor_config.json                     processors, if there is none yet
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.errors import ModelError, ModelGone, StageError
from omlx.settings.file import FileStamp, file_stamp

MAX_CONFIG_BYTES: Final = 16 << 20
"""A config with settings for each of thousands of layers has less than 1 MB."""
MAX_INDEX_BYTES: Final = 64 << 20
"""An index names each tensor: about 10 MB for 100,000 of them."""
MAX_BYTES: Final = 256 << 20
"""The largest tokenizers, of 260,000 tokens, have 35 MB."""

_SUFFIXES: Final = frozenset({".jinja", ".json", ".model", ".txt"})


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in `directory/name`, empty without a file. Raises ModelError for other
    content.
    """
    path = directory / name
    try:
        return read_object(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=name, detail=str(error)) from None


def read_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, and ValueError for other content."""
    if path.stat().st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes >> 20} MB")
    return json_object(path.read_text(encoding="utf-8"))


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for other JSON and for strings that are not Unicode
    text.
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
    """Raise ModelError for a folder that is gone, or holds a pipe, a device or a giant file."""
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


FolderStamp: TypeAlias = tuple[tuple[str, FileStamp], ...]


def folder_stamp(folder: Path) -> FolderStamp:
    """Return the stamps of all files in a folder; none for a missing folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ()
    return tuple((name, file_stamp(os.path.join(folder, name))) for name in names)


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


DEFAULT: Final = "default"
TEMPLATE_FILE: Final = "chat_template.jinja"
TEMPLATE_FOLDER: Final = "additional_chat_templates"
PROCESSOR_FILES: Final = ("chat_template.json", "processor_config.json")
_KEY: Final = "chat_template"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"


def chat_templates(directory: Path) -> dict[str, str]:
    """Return the templates of a model by name, `default` the one for chats; empty without any.

    Raises ModelError for a file that cannot be read.
    """
    named = {**_named(read_config(directory, _TOKENIZER_CONFIG).get(_KEY)), **_files(directory)}
    for name in PROCESSOR_FILES:
        if named:
            break
        named = _named(read_config(directory, name).get(_KEY))
    if len(named) == 1:
        return {DEFAULT: next(iter(named.values()))}
    return named


def _files(directory: Path) -> dict[str, str]:
    paths = {path.stem: path for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja"))}
    paths[DEFAULT] = directory / TEMPLATE_FILE
    return {name: _read(path) for name, path in paths.items() if path.is_file()}


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES >> 20} MB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=path.name, detail=str(error)) from None


def _named(value: Any) -> dict[str, str]:
    """Return the templates in a value of JSON: a text, texts by name, or a list of both."""
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


_SAMPLE: Final = 64 << 10
"""Bytes hashed at the beginning (the header, or most of it) and in the middle of each file."""

_LIBRARIES: Final = ("mlx", "mlx-lm", "mlx-vlm")
"""What computes logits."""

_TOKENIZER_FILES: Final = ("tokenizer*", "vocab*", "merges.txt", "added_tokens.json", "*.model")
_PROCESSOR_CONFIG: Final = "processor_config.json"
_TEMPLATES: Final = ("chat_template*", "additional_chat_templates/*")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What the tokens of a model depend on, as hashes of its files; `dtype` is the setting."""

    weights: str = ""
    tokenizer: str = ""
    template: str = ""
    dtype: str = ""


def model_identity(directory: Path, dtype: str) -> ModelIdentity:
    """Read what identifies a model: of its weights the fingerprint, of the small files everything.

    A chat template inside of the tokenizer's config counts as template alone. Raises OSError,
    ModelError.
    """
    config = read_config(directory, _TOKENIZER_CONFIG)
    template = config.pop("chat_template", None)
    template = template or read_config(directory, _PROCESSOR_CONFIG).get("chat_template")
    tokenizer = _contents(directory, _TOKENIZER_FILES) | {_TOKENIZER_CONFIG: digest(config)}
    return ModelIdentity(
        weights=digest(fingerprint(directory)),
        tokenizer=digest(tokenizer),
        template=digest([template, _contents(directory, _TEMPLATES)]),
        dtype=dtype,
    )


def versions() -> dict[str, str]:
    """Return the versions of the libraries that compute, of those installed."""
    found = {}
    for package in _LIBRARIES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value; its sets are in order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(directory: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the hashes of the files that match, by name."""
    paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def fingerprint(directory: Path) -> dict[str, str]:
    """Return a hash for the config and for each file of weights: of its size, its first bytes and
    those in its middle. Raises ModelError if there are no weights.
    """
    hashes = {}
    for file in (directory / "config.json", *weight_files(directory)):
        digest, size = hashlib.sha256(), file.stat().st_size
        with file.open("rb") as stream:
            digest.update(size.to_bytes(8, "big") + stream.read(_SAMPLE))
            stream.seek(max(0, size // 2 - _SAMPLE // 2))
            digest.update(stream.read(_SAMPLE))
        hashes[file.name] = digest.hexdigest()[:16]
    return hashes


def check_same(model: str, leader: Mapping[str, str], follower: Mapping[str, str]) -> None:
    """Raise StageError for the first file that is not the same on both machines."""
    for file in sorted({*leader, *follower}):
        ours, theirs = leader.get(file, "missing"), follower.get(file, "missing")
        if ours != theirs:
            raise StageError("stage.files", model=model, file=file, leader=ours, follower=theirs)
