"""Writing `model-package.json`: a draft is declared only if it works on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from omlx.atomic_write import replace_file
from omlx.errors import ModelError, Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import read_config
from omlx.models.catalog.reference import Reference, find_draft
from omlx.models.catalog.registry import Registry
from omlx.models.package.compatibility import draft_mismatch
from omlx.models.package.fields import Fields
from omlx.models.package.package import (
    FILE,
    DeclaredDraftModel,
    DeclaredStrategy,
    Package,
    WindowPolicy,
    read_package,
    read_window,
    strategy_to_json,
)


def declare_draft(
    target: ModelEntry, name: str, window: WindowPolicy | None, registry: Registry
) -> DeclaredDraftModel:
    """Return a strategy that drafts with `name`. Raises ModelError unless it is compatible."""
    draft = find_draft(name, registry)
    if isinstance(draft, Reason):
        raise ModelError(draft.code, param=None, **draft.params)
    reason = draft_mismatch(target, draft)
    if reason is not None:
        raise ModelError(reason.code, param=None, **reason.params)
    reference = Reference.parse(name if "/" in name else draft.id)
    return DeclaredDraftModel(reference, window, draft.size_bytes)


def check_package(target: ModelEntry, registry: Registry) -> Package:
    """Return the package of a model. Raises ModelError if it does not work on this machine."""
    package = read_package(target.path)
    if package.reason is not None:
        raise ModelError(package.reason.code, param=None, **package.reason.params)
    if isinstance(package.declared, DeclaredDraftModel):
        declare_draft(target, str(package.declared.draft), package.declared.window, registry)
    return package


def write_package(directory: Path, strategy: DeclaredStrategy, name: str) -> Path:
    """Make `strategy` the default of a model, called `name`; return the file.

    The rest of the file is kept. Raises ModelError for a malformed file, or if writing fails.
    """
    content = read_config(directory, FILE)
    read_package(directory)
    section = _object(_object(content, "generation"), "speculative_decoding")
    _object(section, "strategies")[name] = strategy_to_json(strategy)
    section["default"] = name
    path = directory / FILE
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        # replaces a link of the hub's cache, not the blob that it points to
        replace_file(path, text.encode(), mode=0o644)
    except OSError as error:
        detail = error.strerror or str(error)
        raise ModelError("package.unwritable", file=str(path), detail=detail) from error
    return path


def window_from_bench(file: Path) -> WindowPolicy:
    """Return the window policy in `draft_window` of a benchmark's JSON. Raises ModelError."""
    if not os.path.isfile(file):  # false for too long a name, too, where Path.is_file raises
        raise ModelError("package.no_bench", file=str(file))
    window = read_window(Fields(read_config(file.parent, file.name)), "draft_window")
    if window is None:
        raise ModelError("package.bench_without_window", file=str(file))
    return window


def _object(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object at `key`, created if it is missing or null."""
    if values.get(key) is None:
        values[key] = {}
    inner: dict[str, Any] = values[key]
    return inner
