"""Toolbox: tools of all servers in the settings, called by name; and MCP servers among them.

A server is started or contacted with the first request for tools, never before. The session is
kept, begun again after a failure, and ended once the settings no longer name the server. MCP
servers are local processes over stdio, or addresses over HTTP; the official SDK speaks the
protocol, and is the extra `omlx[mcp]`. Output without messages is skipped, so a server that prints
anything else runs into the time limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from omlx.errors import NotFound, ToolFailed
from omlx.machine import extra_command
from omlx.tools.tool import ADDRESSES, WEB, SearchAddress, Tool, ToolResult, WebSearch

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

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


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Tools of `mcp` servers (addresses or commands, by name) and of the search at `web`."""

    mcp: Callable[[], Mapping[str, str]]
    web: Callable[[], SearchAddress | None]
    _open: dict[str, _Opened] = field(default_factory=dict)

    @property
    def names(self) -> Sequence[str]:
        """Names of the servers in the settings."""
        return list(self._declared())

    @property
    def servers(self) -> Mapping[str, str]:
        """Addresses and commands of the MCP servers in the settings, by name."""
        return self.mcp()

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
        await self._end(
            [name for name, known in self._open.items() if declared.get(name) != known.declared]
        )

    async def close(self) -> None:
        """End all sessions, at the end of the process."""
        await self._end([*self._open])

    async def _end(self, names: Sequence[str]) -> None:
        ended = [self._open.pop(name).server for name in names]
        await asyncio.gather(*(server.close() for server in ended))

    def _declared(self) -> dict[str, Declared]:
        web = self.web()
        return {**self.mcp(), **({} if web is None else {WEB: web})}

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


EXTRA: Final = "mcp"
MAX_PAGES: Final = 50
"""Pages — bound of a list of tools, against endless cursors."""
DETAIL: Final = 300
"""Characters — part of a server's error shown in sentences."""
KEPT_BYTES: Final = 4096
"""Bytes — end of a process's standard error, for the sentence of a failed start."""
CHUNK_BYTES: Final = 16384
PIPE_BYTES: Final = 1 << 16
"""Bytes — usual capacity of a pipe."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds until a server counts as hanging. A start may download its program."""

    start_s: float = 60.0
    list_s: float = 20.0
    call_s: float = 120.0


class McpServer:
    """Tools of an MCP server. Used on the event loop only."""

    def __init__(self, name: str, address: str, limits: Limits | None = None) -> None:
        self.name = name
        self.address = address
        self._limits = limits or Limits()
        self._session: _Session | None = None
        self._tools: Sequence[Tool] | None = None
        self._starting = asyncio.Lock()

    async def tools(self) -> Sequence[Tool]:
        if self._tools is None:
            self._tools = await self._ask(self._list, self._limits.list_s)
        return self._tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        async def ask(client: Client) -> ToolResult:
            return _result(await client.call_tool(tool, dict(arguments)))

        return await self._ask(ask, self._limits.call_s)

    async def close(self) -> None:
        if self._session is not None:
            await self._end(self._session)

    async def _end(self, session: _Session) -> None:
        """End a session, but no session that another call has begun meanwhile."""
        if self._session is session:
            self._session, self._tools = None, None
        await session.close()

    async def _list(self, client: Client) -> Sequence[Tool]:
        tools: list[Tool] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                text = tool.description or tool.title or ""
                harmless = bool(tool.annotations and tool.annotations.read_only_hint)
                tools.append(Tool(self.name, tool.name, text, tool.input_schema, harmless))
            cursor = page.next_cursor
            if not cursor:
                break
        return tools

    async def _ask(self, ask: Callable[[Client], Awaitable[T]], limit_s: float) -> T:
        """Return the answer to a request.

        Raises ToolFailed, and then ends the session, unless the server refused the arguments.
        """
        session, client = await self._client()
        try:
            async with asyncio.timeout(limit_s):
                return await ask(client)
        except TimeoutError as error:
            await self._end(session)
            raise self._hangs(limit_s) from error
        except Exception as error:  # any of the SDK: the tool failed, no more
            detail = _detail(error)
            if not _refuses_arguments(error):
                await self._end(session)
            raise ToolFailed("toolbox.failed", server=self.name, detail=detail) from error

    async def _client(self) -> tuple[_Session, Client]:
        async with self._starting:
            if self._session is None or self._session.ended:
                if find_spec("mcp") is None:
                    raise ToolFailed("toolbox.extra", command=extra_command(EXTRA))
                self._session = _Session(self.address)
            session = self._session
            try:
                async with asyncio.timeout(self._limits.start_s):
                    return session, await session.client()
            except TimeoutError as error:
                await self._end(session)
                raise self._hangs(self._limits.start_s) from error
            except Exception as error:  # whatever a server's program makes the SDK raise
                detail = session.errors.last_line() or _detail(error)
                await self._end(session)
                raise ToolFailed("toolbox.start", server=self.name, detail=detail) from error

    def _hangs(self, seconds: float) -> ToolFailed:
        return ToolFailed("toolbox.timeout", server=self.name, seconds=round(seconds, 1))


class _Session:
    """Connection in a separate task: anyio ends cancel scopes in the task that began them."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.errors = _StandardError()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def client(self) -> Client:
        """Return the connected client. Raises the error of a failed start."""
        await asyncio.wait((self._opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done():
            await self._task  # raises
        return await self._opened

    async def close(self) -> None:
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait((self._task,))
        with suppress(asyncio.CancelledError):
            self._task.exception()  # retrieved: it was reported, or came after the last use
        self.errors.close()

    async def _run(self) -> None:
        from mcp import Client  # noqa: PLC0415 — the extra

        async with Client(_transport(self._address, self.errors.end)) as client:
            self._opened.set_result(client)
            await self._closing.wait()


class _StandardError:
    """Standard error of a process: a pipe of which the last bytes are kept.

    A file would grow for as long as the server runs.
    """

    def __init__(self) -> None:
        self._pipe, end = os.pipe()
        self.end: IO[str] = os.fdopen(end, "w")
        os.set_blocking(self._pipe, False)
        self._last = b""
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    def last_line(self) -> str:
        """Return the last line on the standard error of a process."""
        for _ in range(PIPE_BYTES // CHUNK_BYTES + 1):  # the rest in the pipe
            self._read()
        lines = self._last.decode(errors="replace").split("\n")
        return next((line.strip()[:DETAIL] for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        if self.end.closed:
            return
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self.end.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self._last = (self._last + os.read(self._pipe, CHUNK_BYTES))[-KEPT_BYTES:]


def _transport(address: str, errors: IO[str]) -> Any:
    """Return an address, or the transport of a process. Raises ValueError for an open quote."""
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415 — the extra

    if address.startswith(ADDRESSES):
        return address
    command, *arguments = shlex.split(address)
    return stdio_client(StdioServerParameters(command=command, args=arguments), errors)


def _result(result: CallToolResult) -> ToolResult:
    texts = []
    for block in result.content:
        text = getattr(block, "text", None)
        if block.type == "resource":
            text = getattr(block.resource, "text", None)
        texts.append(f"[{block.type}: left out]" if text is None else str(text))
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ToolResult("\n".join(texts), bool(result.is_error))


def _refuses_arguments(error: Exception) -> bool:
    from mcp import MCPError  # noqa: PLC0415 — the extra
    from mcp.types import INVALID_PARAMS  # noqa: PLC0415 — the extra

    return isinstance(error, MCPError) and error.code == INVALID_PARAMS


def _detail(error: BaseException) -> str:
    """Return the message of an error; of a group, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}"[:DETAIL] or type(error).__name__
