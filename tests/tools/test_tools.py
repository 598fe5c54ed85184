"""Tools of MCP servers of the official SDK, over stdio and HTTP, of broken ones; web search."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from threading import Thread
from typing import Any

import pytest

from omlx.errors import NotFound, ToolFailed
from omlx.tools.tool import MAX_RESULTS, SearchAddress, ToolResult, WebPage
from omlx.tools.toolbox import MAX_CHARACTERS, Limits, McpServer, Toolbox

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
    monkeypatch.setattr("omlx.tools.toolbox.find_spec", lambda name: None)
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


RESULTS = [
    {"title": f"Page {n}", "url": f"http://a.example/{n}", "content": f"About {n}."}
    for n in range(20)
]


@contextmanager
def answering(
    body: str, status: int = 200, key: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything alike: its address, and the paths asked for.

    With `key` it answers as Brave's API does, which refuses other keys.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = key in (None, self.headers["X-Subscription-Token"])
            self.send_response(status if known else 422)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def search(address: str, key: str | None = None, **arguments: Any) -> ToolResult:
    box = Toolbox(dict, lambda: SearchAddress(address, key))
    assert box.names == ["web"]
    return asyncio.run(box.call("web__search", arguments))


def test_results_come_as_text() -> None:
    with answering(json.dumps({"results": RESULTS})) as (address, asked):
        result = search(address, query="rivers & lakes")
    assert asked == ["/search?q=rivers+%26+lakes&format=json"]
    pages = result.text.split("\n\n")
    assert (len(pages), pages[0]) == (MAX_RESULTS, "Page 0\nhttp://a.example/0\nAbout 0.")
    with answering('{"results": [{"title": "half \\ud83d"}]}') as (address, _):
        assert search(address, query="\ud83d").text == "half ?"
    with answering('{"results": []}') as (address, _):
        assert search(address, query="x").text == "No results."


def test_a_key_asks_as_braves_api_is_asked() -> None:
    page = {"title": "Elbe", "url": "http://a.example/", "description": "A river."}
    found = json.dumps({"type": "search", "web": {"type": "search", "results": [page] * 9}})
    with answering(found, key="k") as (address, asked):
        result = search(address, "k", query="rivers")
        with pytest.raises(ToolFailed) as refused:
            search(address, "other", query="rivers")
    assert asked[0] == "/res/v1/web/search?q=rivers&count=8&text_decorations=0"
    assert result.text.split("\n\n") == ["Elbe\nhttp://a.example/\nA river."] * MAX_RESULTS
    assert refused.value.code == "toolbox.search_key"
    with answering('{"type": "search"}', key="k") as (address, _):
        assert search(address, "k", query="x").text == "No results."
    with answering("<html>", key="k") as (address, _), pytest.raises(ToolFailed) as failed:
        search(address, "k", query="x")
    assert failed.value.code == "toolbox.no_brave"


def test_a_call_without_a_query_is_an_error_of_the_model() -> None:
    assert search("http://127.0.0.1:9", words="x").failed


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("<html>", 200),
        ("{}", 200),
        ("[]", 200),
        ("[" * 9999, 200),
        ('{"results": [1]}', 200),
        ("forbidden", 403),
    ],
)
def test_an_answer_that_is_no_json_says_what_to_set(body: str, status: int) -> None:
    with answering(body, status) as (address, _), pytest.raises(ToolFailed) as failed:
        search(address, query="x")
    assert failed.value.code == "toolbox.no_json"


def test_an_address_that_does_not_answer_is_named() -> None:
    with pytest.raises(ToolFailed) as failed:
        search("http://127.0.0.1:9", query="x")
    assert failed.value.code == "toolbox.unreached"
    with pytest.raises(ToolFailed):
        search("http://[::1", query="x")
    with answering("", 500) as (address, _), pytest.raises(ToolFailed) as failed:
        search(address, query="x")
    assert failed.value.params["detail"] == "HTTP 500"


def test_a_port_of_another_protocol_is_no_search() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ready\r\n")

        thread = Thread(target=greet)
        thread.start()
        with pytest.raises(ToolFailed) as failed:
            search(f"http://127.0.0.1:{listening.getsockname()[1]}", query="x")
        thread.join()
    assert failed.value.code == "toolbox.unreached"


def test_the_path_of_an_address_is_kept() -> None:
    wanted = "https://a.example/x/search?l=en&q=b&format=json"
    assert SearchAddress("https://a.example/x/search?l=en").of("b") == wanted


def test_a_cut_result_has_all_pages_with_shorter_excerpts() -> None:
    pages = tuple(WebPage(f"Page {n}", f"http://a.example/{n}", "long " * 100) for n in range(3))
    whole = ToolResult.of(pages)
    cut = whole.cut(300)
    assert [page.url for page in cut.pages] == [page.url for page in pages]
    assert all(len(page.text) <= 102 for page in cut.pages)
    assert cut.text.endswith(f"[cut: {len(whole.text) - 300} more characters]")
    assert whole.cut(len(whole.text)) is whole
