"""Toolbox: tools of all servers in the settings, called by name.

A server is started or contacted with the first request for tools, never before. The session is
kept, and begun again after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from omlx.errors import NotFound
from omlx.tools.mcp import McpServer
from omlx.tools.tool import Tool, ToolResult
from omlx.tools.web import NAME as WEB
from omlx.tools.web import WebSearch

MAX_CHARACTERS: Final = 100_000
"""Characters — bound of a result, some 25,000 tokens."""
CUT: Final = "\n[cut: {left} more characters]"


class ToolServer(Protocol):
    """A source of tools at one address."""

    address: str

    async def tools(self) -> Sequence[Tool]:
        """Return all tools. Raises ToolFailed."""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a tool, also for an error of the tool. Raises ToolFailed."""

    async def close(self) -> None:
        """End the session, if there is one."""


class Toolbox:
    """`servers`: addresses or commands of MCP servers by name; `web`: address of a search."""

    def __init__(
        self, servers: Callable[[], Mapping[str, str]], web: Callable[[], str | None]
    ) -> None:
        self._declared = servers
        self._web = web
        self._open: dict[str, ToolServer] = {}

    @property
    def names(self) -> Sequence[str]:
        """Names of the servers in the settings."""
        return [*self._declared(), *([WEB] if self._web() is not None else [])]

    async def tools(self, server: str) -> Sequence[Tool]:
        """Return the tools of a server. Raises NotFound, ToolFailed."""
        return await (await self._server(server)).tools()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool by its full name. Raises NotFound, ToolFailed."""
        server, _, tool = name.partition(Tool.BETWEEN)
        result = await (await self._server(server)).call(tool, arguments)
        left = len(result.text) - MAX_CHARACTERS
        if left <= 0:
            return result
        return ToolResult(result.text[:MAX_CHARACTERS] + CUT.format(left=left), result.failed)

    async def close(self) -> None:
        """End all sessions, at the end of the process."""
        await asyncio.gather(*(server.close() for server in self._open.values()))
        self._open.clear()

    async def _server(self, name: str) -> ToolServer:
        addresses = dict(self._declared())
        web = self._web()
        if web is not None:
            addresses[WEB] = web
        if name not in addresses:
            raise NotFound("toolbox.no_server", server=name)
        known = self._open.get(name)
        if known is not None and known.address == addresses[name]:
            return known
        make = WebSearch if name == WEB else McpServer
        server = self._open[name] = make(name, addresses[name])
        if known is not None:  # the settings have changed
            await known.close()
        return server
