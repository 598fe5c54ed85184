"""A server of the official SDK: python -m tests.tools.sdk_server [few] [http PORT]"""

from __future__ import annotations

import os
import sys
import time

from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.types import INVALID_PARAMS, ToolAnnotations

server = MCPServer("probe")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Always fail."""
    raise ValueError("no such river")


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(600)
    return ""


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def pid() -> int:
    """Return the id of the process."""
    return os.getpid()


@server.tool()
def echo(text: str) -> str:
    """Return a text."""
    return text


@server.tool()
def long(length: int) -> str:
    """Return a text of that length."""
    return "x" * length


@server.tool()
def refuse() -> str:
    """Answer with an error of the protocol, as other SDKs do for wrong arguments."""
    raise MCPError(INVALID_PARAMS, "no such river")


for number in range(0 if "few" in sys.argv else 43):

    def numbered(number: int = number) -> int:
        return number

    server.add_tool(numbered, name=f"tool-{number}", description=f"Return {number}.")


if __name__ == "__main__":
    if "http" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    else:
        server.run("stdio")
