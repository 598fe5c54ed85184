"""Tools and their results, the same for all servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

ADDRESSES: Final = ("http://", "https://")
"""Beginnings of an address; any other text is a command."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Tool of a server; `schema` is the JSON schema of the arguments."""

    BETWEEN: ClassVar[str] = "__"

    server: str
    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def full_name(self) -> str:
        """Name that models call: unique among all servers."""
        return f"{self.server}{self.BETWEEN}{self.name}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Text of a result; `failed` marks an error of the tool."""

    text: str
    failed: bool = False
