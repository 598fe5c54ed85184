"""Tools and their results, the same for all servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

ADDRESSES: Final = ("http://", "https://")
"""Beginnings of an address; any other text is a command."""

MCP: Final = "mcp"
"""Type of the tools of MCP servers; other types are a search."""


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
    """Tool in a request; `asks`: the client approves each call first.

    `tool` has the server's name in the request, `called` is the full name in the toolbox.
    """

    tool: Tool
    called: str
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Toolset:
    """Tools of a server in a request of the API, at `field`, of type `kind`.

    `address` None: as in the settings. `allows`: tools in the request; `asks`: tools whose
    calls wait for an approval. `max_calls` None: no bound of its own.
    """

    field: str
    kind: str
    server: str
    address: str | None
    allows: Callable[[Tool], bool]
    asks: Callable[[Tool], bool]
    max_calls: int | None = None


@dataclass(frozen=True, slots=True)
class WebPage:
    """Page among the results of a search."""

    title: str
    url: str
    excerpt: str

    def cut(self, characters: int) -> WebPage:
        """Return the page with a shorter excerpt, of at most `characters` with title and URL."""
        left = max(0, characters - len(self.title) - len(self.url))
        return replace(self, excerpt=self.excerpt[:left])

    @property
    def text(self) -> str:
        """Text of the page for models."""
        return "\n".join(filter(None, (self.title, self.url, self.excerpt)))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Text of a result; `failed` marks an error of the tool. `pages`: those of a search.

    `refused`: the call was beyond the bounds of the answer.
    """

    CUT: ClassVar[str] = "\n[cut: {left} more characters]"

    text: str
    failed: bool = False
    pages: tuple[WebPage, ...] = ()
    refused: bool = False

    def cut(self, characters: int) -> ToolResult:
        """Return the result with at most `characters`, and a note where that is less."""
        left = len(self.text) - characters
        if left <= 0:
            return self
        share = characters // max(1, len(self.pages))
        pages = tuple(page.cut(share) for page in self.pages)
        text = ToolResult.of(pages).text if pages else self.text
        return replace(self, text=text[:characters] + self.CUT.format(left=left), pages=pages)

    @classmethod
    def of(cls, pages: tuple[WebPage, ...]) -> ToolResult:
        """Return the result of a search."""
        return cls("\n\n".join(page.text for page in pages) or "No results.", pages=pages)
