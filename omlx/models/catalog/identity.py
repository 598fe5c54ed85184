"""Model identity: hashes of the files that tokens depend on, and library versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from omlx.errors import Reason, StageError
from omlx.models.catalog.files import (
    ADAPTER,
    ADAPTER_CONFIG,
    CONFIG,
    PROCESSOR_CONFIG,
    TOKENIZER_CONFIG,
    ModelFiles,
)
from omlx.models.library.choose import choose
from omlx.settings.schema import Settings

_SAMPLE: Final = 64 << 10
"""Bytes hashed at the start (most of the header) and in the middle."""

_LIBRARIES: Final = ("mlx", "mlx-lm", "mlx-vlm")
"""Distributions that compute logits."""

_TOKENIZER_FILES: Final = ("tokenizer*", "vocab*", "merges.txt", "added_tokens.json", "*.model")
_TEMPLATES: Final = ("chat_template*", "additional_chat_templates/*")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Hashes of the files that a model's tokens depend on.

    `dtype` is the setting, `library` has the model's classes, `kv_bits` are those of quantized KV
    caches.
    """

    weights: str = ""
    tokenizer: str = ""
    template: str = ""
    dtype: str = ""
    library: str = ""
    kv_bits: str = ""


def model_identity(directory: Path, settings: Settings) -> ModelIdentity:
    """Hash weights by fingerprint, small files entirely.

    A chat template inside the tokenizer's config counts as template alone. Raises OSError,
    ModelError.
    """
    files = ModelFiles.at(directory)
    trusted, library = settings.trust_remote_code, settings.library
    classes = choose(files.config, trusted=trusted, library=library)
    config = files.json(TOKENIZER_CONFIG)
    template = config.pop("chat_template", None)
    template = template or files.json(PROCESSOR_CONFIG).get("chat_template")
    tokenizer = _contents(directory, _TOKENIZER_FILES) | {TOKENIZER_CONFIG: digest(config)}
    return ModelIdentity(
        weights=digest(fingerprint(directory)),
        tokenizer=digest(tokenizer),
        template=digest([template, _contents(directory, _TEMPLATES)]),
        dtype=settings.dtype,
        library="" if isinstance(classes, Reason) else classes.library,
    )


def versions() -> dict[str, str]:
    """Return the versions of installed libraries that compute."""
    found = {}
    for package in _LIBRARIES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, with sets sorted."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(directory: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the hashes of matching files, by name."""
    paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def fingerprint(directory: Path) -> dict[str, str]:
    """Hash config, weights and adapter, by file: size, first and middle bytes.

    Raises ModelError without weights.
    """
    hashes = {}
    files = ModelFiles.at(directory)
    adapter = [directory / name for name in (ADAPTER_CONFIG, ADAPTER) if files.has(name)]
    for file in (directory / CONFIG, *files.weights, *adapter):
        digest, size = hashlib.sha256(), file.stat().st_size
        with file.open("rb") as stream:
            digest.update(size.to_bytes(8, "big") + stream.read(_SAMPLE))
            stream.seek(max(0, size // 2 - _SAMPLE // 2))
            digest.update(stream.read(_SAMPLE))
        hashes[file.name] = digest.hexdigest()[:16]
    return hashes


def check_same(model: str, leader: Mapping[str, str], follower: Mapping[str, str]) -> None:
    """Raise StageError for the first file that differs between the machines."""
    for file in sorted({*leader, *follower}):
        ours, theirs = leader.get(file, "missing"), follower.get(file, "missing")
        if ours != theirs:
            raise StageError("stage.files", model=model, file=file, leader=ours, follower=theirs)
