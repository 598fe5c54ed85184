"""Writing `model-package.json`: only what has been found to work here is declared."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from omlx.engine.types import Reason
from omlx.errors import ModelError
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import read_config
from omlx.models.catalog.reference import Reference, find_draft
from omlx.models.package.compatibility import draft_mismatch
from omlx.models.package.fields import Fields
from omlx.models.package.package import (
    FILE,
    Declared,
    DraftModel,
    Package,
    WindowPolicy,
    read_package,
    read_window,
    strategy_record,
)


def declare_draft(
    target: ModelEntry, draft: str, window: WindowPolicy | None, registry: Registry
) -> DraftModel:
    """A declaration of `draft` for `target`. Raises ModelError if it is not here or does not fit."""
    found = find_draft(draft, registry)
    reason = found if isinstance(found, Reason) else draft_mismatch(target, found)
    if isinstance(found, Reason) or reason is not None:
        assert reason is not None
        raise ModelError(reason.code, param=None, **reason.params)
    reference = Reference.parse(draft if "/" in draft else found.id)
    return DraftModel(reference, window, found.size_bytes)


def check_package(target: ModelEntry, registry: Registry) -> Package:
    """The package of a model, and that what it declares works here. Raises ModelError for the first
    thing that does not.
    """
    package = read_package(target.path)
    if package.reason is not None:
        raise ModelError(package.reason.code, param=None, **package.reason.params)
    if isinstance(package.declared, DraftModel):
        declare_draft(target, str(package.declared.draft), package.declared.window, registry)
    return package


def write_package(directory: Path, declared: Declared, name: str) -> Path:
    """Make `declared` the default strategy of a model, by `name`, and leave everything else in the
    file as it is.

    Raises ModelError if the file that is there is malformed, or cannot be written.
    """
    content = read_config(directory, FILE)
    read_package(directory)
    generation = _inner(content, "generation")
    block = _inner(generation, "speculative_decoding")
    strategies = _inner(block, "strategies")
    strategies[name] = strategy_record(declared)
    block["default"] = name
    path = directory / FILE
    try:
        _replace(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ModelError(
            "package.unwritable", file=str(path), detail=error.strerror or str(error)
        ) from error
    return path


def window_from_bench(file: Path) -> WindowPolicy:
    """The window that a benchmark found best: the object `draft_window` of its JSON, written like a
    `window_policy`.

    Raises ModelError.
    """
    if not os.path.isfile(file):  # which is false for a name that is too long, too
        raise ModelError("package.no_bench", file=str(file))
    window = read_window(Fields(read_config(file.parent, file.name)), "draft_window")
    if window is None:
        raise ModelError("package.bench_without_window", file=str(file))
    return window


def _inner(values: dict[str, Any], key: str) -> dict[str, Any]:
    """The object in `values` that readers find there: null is as absent."""
    if values.get(key) is None:
        values[key] = {}
    inner: dict[str, Any] = values[key]
    return inner


def _replace(path: Path, text: str) -> None:
    """Write beside and rename: a link, as the hub's cache has them, is replaced and what it points
    to is not.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
