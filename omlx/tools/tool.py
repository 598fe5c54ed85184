"""Tools and their results, the same for all servers; and the built-in web search.

It asks an address of the user's own: SearXNG, or Brave's API if there is a key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any, ClassVar, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from omlx.errors import ToolFailed

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


WEB: Final = "web"
TIMEOUT_S: Final = 15.0
MAX_BYTES: Final = 4 << 20
MAX_RESULTS: Final = 8
SEARCH: Final = "search"
_DESCRIPTION: Final = "Search the web. Returns titles, addresses and excerpts of pages."
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "Words to search for."}},
    "required": ["query"],
}
_FORBIDDEN: Final = 403
"""Status of SearXNG for a format that its settings do not list."""
_BRAVE_PATH: Final = "/res/v1/web/search"
_BRAVE_KEY: Final = "X-Subscription-Token"
_KEY_STATUSES: Final = frozenset({401, 403, 422})
"""Statuses of Brave's API for a missing or wrong key."""


@dataclass(frozen=True, slots=True)
class SearchAddress:
    """Address of a search; with a key, of Brave's API."""

    url: str
    key: str | None = None

    def of(self, words: str) -> str:
        """Return the address of a search for `words`; a path in the address is kept."""
        scheme, host, path, given, _ = urlsplit(self.url)
        fields = {"q": words, "format": "json"}
        if self.key is not None:
            fields = {"q": words, "count": str(MAX_RESULTS), "text_decorations": "0"}
        if not path.strip("/"):
            path = f"/{SEARCH}" if self.key is None else _BRAVE_PATH
        return urlunsplit(
            (scheme, host, path, "&".join(filter(None, (given, urlencode(fields)))), "")
        )


class WebSearch:
    """A server of tools with one tool."""

    def __init__(self, address: SearchAddress) -> None:
        self._address = address

    async def tools(self) -> Sequence[Tool]:
        return [Tool(WEB, SEARCH, _DESCRIPTION, _SCHEMA, read_only=True)]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        query = arguments.get("query")
        if tool != SEARCH or not isinstance(query, str) or not query.strip():
            return ToolResult("search needs a text in `query`", failed=True)
        return ToolResult.of(await asyncio.to_thread(self._search, query))

    async def close(self) -> None:
        pass

    def _search(self, query: str) -> tuple[WebPage, ...]:
        """Return the pages of a search. Blocks. Raises ToolFailed."""
        key = self._address.key
        headers = {"Accept": "application/json", "User-Agent": "omlx"}
        if key is not None:
            headers[_BRAVE_KEY] = key
        try:
            request = Request(self._address.of(_encodable(query)), headers=headers)
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(MAX_BYTES))
            results = found["results"] if key is None else found.get("web", {}).get("results", [])
            return tuple(map(_page, results[:MAX_RESULTS]))
        except HTTPError as error:
            error.close()  # an answer with an open socket
            if key is not None and error.code in _KEY_STATUSES:
                raise ToolFailed("toolbox.search_key", address=self._address.url) from error
            if key is None and error.code == _FORBIDDEN:
                raise self._no_json() from error
            raise self._unreached(f"HTTP {error.code}") from error
        except (URLError, OSError, HTTPException) as error:
            raise self._unreached(str(getattr(error, "reason", error))) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._no_json() from error

    def _no_json(self) -> ToolFailed:
        code = "toolbox.no_json" if self._address.key is None else "toolbox.no_brave"
        return ToolFailed(code, address=self._address.url)

    def _unreached(self, detail: str) -> ToolFailed:
        return ToolFailed("toolbox.unreached", address=self._address.url, detail=detail)


def _page(result: Mapping[str, Any]) -> WebPage:
    """Return a result of SearXNG (`content`) or of Brave's API (`description`)."""
    texts = (result.get("title"), result.get("url"))
    excerpt = result.get("content") or result.get("description")
    return WebPage(*(_encodable(str(text or "")) for text in (*texts, excerpt)))


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON may hold."""
    return text.encode(errors="replace").decode()
