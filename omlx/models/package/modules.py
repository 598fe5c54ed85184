"""The modules of sentence-transformers that a model directory lists, in order (modules.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

MODULES: Final = "modules.json"


def read_modules(directory: Path) -> list[dict[str, Any]]:
    """Return the modules of a model, none without a readable file."""
    try:
        content = json.loads((directory / MODULES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(content, list):
        return []
    return [module for module in content if isinstance(module, dict)]


def module_kinds(modules: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of their classes, such as `Pooling`."""
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules]
