"""Architectures of the installed mlx-lm, read from source: importing would import mlx.

A module of `mlx_lm.models` is one architecture. `RopeFacts` lists the RoPE config keys that its
code reads: a declared but otherwise unread dataclass field has no effect.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Final

_SCALINGS: Final = frozenset(
    {"deepseek_yarn", "dynamic", "linear", "llama3", "longrope", "proportional", "su", "yarn"}
)
"""Values of `rope_type` that change positions."""
_COMMON: Final = _SCALINGS - {"su"}
"""Types computed by `mlx_lm.models.rope_utils.initialize_rope`."""
_ONLY: Final = {
    "deepseek_v2": frozenset({"yarn"}),
    "deepseek_v41": frozenset({"yarn"}),
    "gemma4_text": _COMMON,
    "hunyuan": frozenset({"dynamic"}),
    "hunyuan_v1_dense": frozenset({"dynamic"}),
    "mellum": _COMMON - {"linear"},
    "minicpm3": frozenset({"longrope"}),
    "phimoe": frozenset({"longrope"}),
    "spark2_5": frozenset(),
}
"""Types of architectures whose source does not show them: most compute one, ignoring the config."""
_ROTATIONS: Final = frozenset({"RoPE", "initialize_rope", "rope"})
_SHARED_MODULES: Final = frozenset({"base", "cache", "rope_utils"})
_IMPORT_LOCK: Final = Lock()


@contextmanager
def importing() -> Iterator[None]:
    """Serialize imports of libraries: mutually importing modules can deadlock.

    New objects are frozen: each full garbage collection would scan them, 50 ms without Python.
    """
    with _IMPORT_LOCK:
        modules = len(sys.modules)
        yield
        if len(sys.modules) > modules:
            gc.collect()
            gc.freeze()


@dataclass(frozen=True, slots=True)
class RopeFacts:
    """RoPE config `keys` read by the code, and `types` of scaling it computes.

    `rotates`: rotary positions exist. `newer`: a field `rope_parameters` exists, perhaps read in
    part.
    """

    name: str
    rotates: bool = False
    newer: bool = False
    keys: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


def module_of(model_type: object) -> str | None:
    """Return mlx-lm's module for a `model_type`; None without one."""
    name = _remapping().get(str(model_type), str(model_type))
    return name if name in _modules() else None


def rope_facts(module: str) -> RopeFacts:
    """Return the RoPE keys read by a module of mlx-lm.

    A module without rotations uses those of the architectures it imports.
    """
    parts = _sources(module)
    declared = frozenset().union(*(part.declared for part in parts))
    read = frozenset().union(*(part.read for part in parts))
    return RopeFacts(
        name=module,
        rotates=any(part.rotates for part in parts),
        newer="rope_parameters" in declared,
        keys=declared & read,
        types=frozenset().union(*(part.types for part in parts)),
    )


def _sources(module: str) -> list[_Module]:
    """Return a module and, if it has no rotations, its imported architectures."""
    own = _read_module(module)
    if own.rotates:
        return [own]
    return [own, *(part for name in own.imports for part in _sources(name))]


def has_rotations(module: str) -> bool:
    """Return whether a module computes rotary positions itself."""
    return _read_module(module).rotates


@dataclass(frozen=True, slots=True)
class _Module:
    """Names in an architecture's source: fields of its configs, attributes read elsewhere."""

    declared: frozenset[str]
    read: frozenset[str]
    rotates: bool
    types: frozenset[str]
    imports: tuple[str, ...]


@cache
def _read_module(module: str) -> _Module:
    declared: set[str] = set()
    read: set[str] = set()
    texts: set[str] = set()
    names: set[str] = set()
    imports: list[str] = []
    for statement in _parse(f"models/{module}.py").body:
        if isinstance(statement, ast.ImportFrom) and statement.level == 1:
            modules = [alias.name for alias in statement.names]
            imports += [statement.module] if statement.module else modules
        is_config = isinstance(statement, ast.ClassDef) and bool(statement.decorator_list)
        for node in ast.walk(statement):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name)) if is_config:
                    declared.add(name)
                case ast.Attribute(attr=name, ctx=ast.Load()) if not is_config:
                    read.add(name)
                case ast.Name(id=name):
                    names.add(name)
                case ast.Constant(value=str() as text):
                    texts.add(text)
    any_type = _COMMON if "initialize_rope" in names else frozenset()
    types = _ONLY.get(module, frozenset(texts & _SCALINGS) or any_type)
    return _Module(
        declared=frozenset(declared),
        read=frozenset(read),
        rotates=bool(_ROTATIONS & (read | names)),
        types=types,
        imports=tuple(name for name in imports if name in _modules() - _SHARED_MODULES),
    )


@cache
def _package() -> Path:
    spec = find_spec("mlx_lm")
    assert spec is not None, "mlx-lm is not installed"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def _parse(name: str) -> ast.Module:
    return ast.parse((_package() / name).read_text(encoding="utf-8"))


@cache
def _modules() -> frozenset[str]:
    return frozenset(path.stem for path in (_package() / "models").glob("*.py"))


@cache
def _remapping() -> Mapping[str, str]:
    """Return the literal `MODEL_REMAPPING` of mlx_lm.utils; empty if removed upstream."""
    for statement in _parse("utils.py").body:
        if not isinstance(statement, ast.Assign):
            continue
        if ast.unparse(statement.targets[0]) == "MODEL_REMAPPING":
            remapping: dict[str, str] = ast.literal_eval(statement.value)
            return remapping
    return {}
