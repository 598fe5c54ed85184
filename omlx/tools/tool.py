"""Tools and their results, the same for all servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

ADDRESSES: Final = ("http://", "https://")
"""Beginnings of an address; any other text is a command."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Tool of a server; `schema` is the JSON schema of the arguments.

    `read_only`: calls change nothing, by the server's word.
    """

    BETWEEN: ClassVar[str] = "__"

    server: str
    name: str
    description: str
    schema: Mapping[str, Any]
    read_only: bool = False

    @property
    def full_name(self) -> str:
        """Name that models call: unique among all servers."""
        return f"{self.server}{self.BETWEEN}{self.name}"


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """Tool in a request; `asks`: the client approves each call first."""

    tool: Tool
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools of a server in a request of the API, at `field`, of type `kind`.

    `address` None: as in the settings. `allows`: tools in the request; `asks`: tools whose
    calls wait for an approval.
    """

    field: str
    kind: str
    server: str
    address: str | None
    allows: Callable[[Tool], bool]
    asks: Callable[[Tool], bool]


@dataclass(frozen=True, slots=True)
class WebPage:
    """Page among the results of a search."""

    title: str
    url: str
    excerpt: str

    @property
    def text(self) -> str:
        """Text of the page for models."""
        return "\n".join(filter(None, (self.title, self.url, self.excerpt)))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Text of a result; `failed` marks an error of the tool. `pages`: those of a search."""

    text: str
    failed: bool = False
    pages: tuple[WebPage, ...] = ()

    @classmethod
    def of(cls, pages: tuple[WebPage, ...]) -> ToolResult:
        """Return the result of a search."""
        return cls("\n\n".join(page.text for page in pages) or "No results.", pages=pages)
