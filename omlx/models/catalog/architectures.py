"""Which model types mlx-lm can build, read from its files: asking its modules would import mlx."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def is_supported(model_type: str) -> bool:
    """Whether the installed mlx-lm has this architecture, under its own name or a mapped one."""
    modules, remapped = _installed()
    return remapped.get(model_type, model_type) in modules


@cache
def _installed() -> tuple[frozenset[str], dict[str, str]]:
    spec = find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset(), {}
    package = Path(spec.submodule_search_locations[0])
    names = frozenset(path.stem for path in (package / "models").glob("*.py"))
    return names, _remapping((package / "utils.py").read_text(encoding="utf-8"))


def _remapping(source: str) -> dict[str, str]:
    """The literal dictionary `MODEL_REMAPPING` of mlx_lm.utils; empty if there is none any more."""
    for statement in ast.parse(source).body:
        if (
            isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "MODEL_REMAPPING"
        ):
            remapping: dict[str, str] = ast.literal_eval(statement.value)
            return remapping
    return {}
