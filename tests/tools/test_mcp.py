"""MCP servers of the official SDK, over stdio and HTTP, and servers that are none."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from omlx.errors import NotFound, ToolFailed
from omlx.tools import mcp
from omlx.tools.mcp import Limits, McpServer
from omlx.tools.toolbox import MAX_CHARACTERS, Toolbox

COMMAND = shlex.join([sys.executable, "-m", "tests.tools.sdk_server"])
PATIENT = Limits(100, 100, 100)

needs_mcp = pytest.mark.skipif(
    find_spec("mcp") is None and not os.environ.get("CI"), reason="needs omlx[mcp]"
)


def with_server(
    run: Callable[[McpServer], Awaitable[Any]], address: str = COMMAND, limits: Limits = PATIENT
) -> Any:
    async def use() -> Any:
        server = McpServer("probe", address, limits)
        try:
            return await run(server)
        finally:
            await server.close()

    return asyncio.run(use())


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def refusal(address: str, limits: Limits = PATIENT) -> tuple[str, str]:
    """Return code and sentence of the failure to list tools."""
    with pytest.raises(ToolFailed) as failed:
        with_server(McpServer.tools, address, limits)
    return failed.value.code, failed.value.message


@needs_mcp
def test_fifty_tools_are_listed_and_called() -> None:
    async def run(server: McpServer) -> None:
        tools = {tool.full_name: tool for tool in await server.tools()}
        assert len(tools) == 50
        add = tools["probe__add"]
        assert (add.description, list(add.schema["properties"])) == ("Add two numbers.", ["a", "b"])
        assert (await server.call("add", {"a": 2, "b": 40})).text == "42"
        results = await asyncio.gather(*(server.call(f"tool-{n}", {}) for n in range(5)))
        assert [result.text for result in results] == ["0", "1", "2", "3", "4"]

    with_server(run)


@needs_mcp
def test_a_tool_that_fails_is_a_result_and_the_session_goes_on() -> None:
    async def run(server: McpServer) -> None:
        failed = await server.call("add", {"a": "x", "b": 1})
        assert failed.failed
        assert "validation error" in failed.text
        assert (await server.call("add", {"a": 1, "b": 1})).text == "2"

    with_server(run)


@needs_mcp
def test_refused_arguments_do_not_end_the_session() -> None:
    async def run(server: McpServer) -> None:
        await server.tools()
        session = server._session
        with pytest.raises(ToolFailed, match="no such river"):
            await server.call("refuse", {})
        assert server._session is session

    with_server(run)


@needs_mcp
def test_the_end_of_a_session_leaves_the_next_one_alone() -> None:
    async def run(server: McpServer) -> None:
        await server.tools()
        hanging = asyncio.create_task(server.call("hang", {}))
        for _ in range(100):
            await asyncio.sleep(0)  # until it waits for its result
        closing = asyncio.create_task(server.close())
        following = asyncio.create_task(server.call("add", {"a": 1, "b": 2}))
        with pytest.raises(ToolFailed):
            await hanging
        assert (await following).text == "3"
        await closing

    with_server(run)


@needs_mcp
def test_a_hanging_tool_is_stopped_and_the_next_call_starts_the_server_again() -> None:
    async def run(server: McpServer) -> None:
        await server.tools()
        server._limits = Limits(100, 100, 0.2)
        with pytest.raises(ToolFailed) as failed:
            await server.call("hang", {})
        assert (failed.value.code, failed.value.params["seconds"]) == ("toolbox.timeout", 0.2)
        server._limits = PATIENT
        assert (await server.call("add", {"a": 1, "b": 2})).text == "3"

    with_server(run)


@needs_mcp
def test_a_server_that_hangs_prints_garbage_or_is_no_program() -> None:
    short = Limits(start_s=0.5)
    asleep = python("import time; time.sleep(600)")
    assert refusal(asleep, short)[0] == "toolbox.timeout"
    garbage = python("import time\nwhile True: print('<html>', flush=True); time.sleep(0.05)")
    assert refusal(garbage, short)[0] == "toolbox.timeout"
    code, sentence = refusal(python("raise SystemExit('set API_KEY first')"))
    assert code == "toolbox.start"
    assert "set API_KEY first" in sentence
    assert refusal("no-such-program-here --x")[0] == "toolbox.start"
    assert refusal('an "open quote')[0] == "toolbox.start"
    assert refusal("http://127.0.0.1:9/mcp")[0] == "toolbox.start"


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "find_spec", lambda name: None)
    code, sentence = refusal(COMMAND)
    assert code == "toolbox.extra"
    assert "[mcp]" in sentence


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a server of the SDK over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*shlex.split(COMMAND), "http", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any("running" in line for line in process.stderr), "it has ended"
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.communicate()


@needs_mcp
def test_a_server_over_http(address: str) -> None:
    async def run(server: McpServer) -> None:
        assert len(await server.tools()) == 50
        assert (await server.call("add", {"a": 2, "b": 3})).text == "5"

    with_server(run, address)


@needs_mcp
def test_the_end_of_standard_error_is_kept_and_no_more() -> None:
    lines = "for n in range(20000): print('line', n, 'x' * 50, file=sys.stderr)"
    loud = f"import sys\n{lines}\nsys.exit(3)"

    async def run(server: McpServer) -> str:
        with pytest.raises(ToolFailed) as failed:
            await server.tools()
        return failed.value.message

    assert "line 19999" in with_server(run, python(loud))


@needs_mcp
def test_a_server_that_the_settings_no_longer_name_is_ended() -> None:
    declared = {"probe": COMMAND}

    async def run() -> None:
        box = Toolbox(lambda: declared, lambda: None)
        pid = int((await box.call("probe__pid", {})).text)
        await box.end_removed()
        assert (await box.call("probe__pid", {})).text == str(pid)
        del declared["probe"]
        await box.end_removed()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(run())


@needs_mcp
def test_the_toolbox_follows_the_settings_and_cuts_long_results() -> None:
    declared = {"probe": COMMAND}

    async def run() -> None:
        box = Toolbox(lambda: declared, lambda: None)
        assert box.names == ["probe"]
        assert (await box.call("probe__add", {"a": 1, "b": 2})).text == "3"
        cut = (await box.call("probe__long", {"length": MAX_CHARACTERS + 7})).text
        assert cut.endswith("[cut: 7 more characters]")
        declared["probe"] = "no-such-program-here"
        with pytest.raises(ToolFailed):
            await box.call("probe__add", {"a": 1, "b": 2})
        with pytest.raises(NotFound):
            await box.call("other__add", {})
        await box.close()

    asyncio.run(run())
