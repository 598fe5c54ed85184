"""Web search at an address of the user's own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from omlx.errors import ToolFailed
from omlx.tools.tool import ToolResult, WebPage
from omlx.tools.toolbox import Toolbox
from omlx.tools.web import MAX_RESULTS, SearchAddress

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
