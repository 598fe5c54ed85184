"""Web search at an address of the user's own: SearXNG, which answers with JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from omlx.errors import ToolFailed
from omlx.tools.tool import Tool, ToolResult

NAME: Final = "web"
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


class WebSearch:
    """A server of tools with one tool."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    async def tools(self) -> Sequence[Tool]:
        return [Tool(self.name, SEARCH, _DESCRIPTION, _SCHEMA)]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        query = arguments.get("query")
        if tool != SEARCH or not isinstance(query, str) or not query.strip():
            return ToolResult("search needs a text in `query`", failed=True)
        return ToolResult(await asyncio.to_thread(self._search, query))

    async def close(self) -> None:
        pass

    def _search(self, query: str) -> str:
        """Return the results as text. Blocks. Raises ToolFailed."""
        headers = {"Accept": "application/json", "User-Agent": "omlx"}
        try:
            request = Request(search_address(self.address, _encodable(query)), headers=headers)
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                results = json.loads(answer.read(MAX_BYTES))["results"]
            return "\n\n".join(map(_shown, results[:MAX_RESULTS])) or "No results."
        except HTTPError as error:
            error.close()  # an answer with an open socket
            if error.code == _FORBIDDEN:
                raise ToolFailed("toolbox.no_json", address=self.address) from error
            raise self._unreached(f"HTTP {error.code}") from error
        except (URLError, OSError, HTTPException) as error:
            raise self._unreached(str(getattr(error, "reason", error))) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ToolFailed("toolbox.no_json", address=self.address) from error

    def _unreached(self, detail: str) -> ToolFailed:
        return ToolFailed("toolbox.unreached", address=self.address, detail=detail)


def search_address(address: str, query: str) -> str:
    """Return the address of a search; without a path, `/search` is meant."""
    scheme, host, path, given, _ = urlsplit(address)
    fields = "&".join(filter(None, (given, urlencode({"q": query, "format": "json"}))))
    return urlunsplit((scheme, host, path if path.strip("/") else f"/{SEARCH}", fields, ""))


def _shown(result: Mapping[str, Any]) -> str:
    parts = (result.get("title"), result.get("url"), result.get("content"))
    return _encodable("\n".join(str(part) for part in parts if part))


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON may hold."""
    return text.encode(errors="replace").decode()
