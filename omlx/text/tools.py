"""The functions that a request lets the model call, and how it may call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools and tool choice of one request.

    `functions` are as chat templates take them: `{"type": "function", "function": {"name": …,
    "parameters": …}}`. `forced`: the answer must be a call, of `name` if that is set. `single`: at
    most one call. `strict` names the functions whose arguments must follow their schema even where
    no call is forced.
    """

    functions: tuple[Mapping[str, Any], ...]
    forced: bool = False
    name: str | None = None
    single: bool = False
    strict: frozenset[str] = frozenset()

    @property
    def allowed(self) -> tuple[Mapping[str, Any], ...]:
        """The functions that may be called, each as `{"name": …, "parameters": …}`."""
        functions = (tool["function"] for tool in self.functions)
        return tuple(function for function in functions if self.name in (None, function["name"]))
