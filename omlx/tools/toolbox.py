"""Toolbox: tools of all servers in the settings, called by name.

A server is started or contacted with the first request for tools, never before. The session is
kept, begun again after a failure, and ended once the settings no longer name the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from omlx.errors import NotFound
from omlx.tools.mcp import McpServer
from omlx.tools.tool import WEB, SearchAddress, Tool, ToolResult, WebSearch

MAX_CHARACTERS: Final = 100_000
"""Characters — bound of a result, some 25,000 tokens."""

Declared: TypeAlias = str | SearchAddress
"""Address or command of an MCP server, or address of a search."""


class ToolServer(Protocol):
    """A source of tools at one address."""

    async def tools(self) -> Sequence[Tool]:
        """Return all tools. Raises ToolFailed."""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a tool, also for an error of the tool. Raises ToolFailed."""

    async def close(self) -> None:
        """End the session, if there is one."""


class _Opened(NamedTuple):
    declared: Declared
    server: ToolServer


class Toolbox:
    """`servers`: addresses or commands of MCP servers by name; `web`: address of a search."""

    def __init__(
        self,
        servers: Callable[[], Mapping[str, str]],
        web: Callable[[], SearchAddress | None],
    ) -> None:
        self._mcp = servers
        self._web = web
        self._open: dict[str, _Opened] = {}

    @property
    def names(self) -> Sequence[str]:
        """Names of the servers in the settings."""
        return list(self._declared())

    @property
    def servers(self) -> Mapping[str, str]:
        """Addresses and commands of the MCP servers in the settings, by name."""
        return self._mcp()

    async def tools(self, server: str) -> Sequence[Tool]:
        """Return the tools of a server. Raises NotFound, ToolFailed."""
        return await (await self._server(server)).tools()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool by its full name. Raises NotFound, ToolFailed."""
        server, _, tool = name.partition(Tool.BETWEEN)
        return (await (await self._server(server)).call(tool, arguments)).cut(MAX_CHARACTERS)

    async def end_removed(self) -> None:
        """End sessions of servers removed from the settings, or changed there."""
        if not self._open:
            return
        declared = self._declared()
        removed = [
            name for name, known in self._open.items() if declared.get(name) != known.declared
        ]
        ended = [self._open.pop(name).server for name in removed]
        await asyncio.gather(*(server.close() for server in ended))

    async def end_removed_every(self, interval_s: float) -> None:
        """End removed servers every `interval_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.end_removed()

    async def close(self) -> None:
        """End all sessions, at the end of the process."""
        ended = [known.server for known in self._open.values()]
        self._open.clear()
        await asyncio.gather(*(server.close() for server in ended))

    def _declared(self) -> dict[str, Declared]:
        web = self._web()
        return {**self._mcp(), **({} if web is None else {WEB: web})}

    async def _server(self, name: str) -> ToolServer:
        declared = self._declared().get(name)
        if declared is None:
            raise NotFound("toolbox.no_server", server=name)
        await self.end_removed()
        if name not in self._open:
            server: ToolServer
            if isinstance(declared, SearchAddress):
                server = WebSearch(declared)
            else:
                server = McpServer(name, declared)
            self._open[name] = _Opened(declared, server)
        return self._open[name].server
