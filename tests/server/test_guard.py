"""The guard around a small application, on a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from itertools import product

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from omlx.errors import OmlxError
from omlx.server.http import errors
from omlx.server.http.guard import AccessGuard, ApiKeys, hostname, same_key
from omlx.server.http.transport import while_connected
from tests.server.running import PATIENCE_S, serving

KEY = "clé-日本"


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body())


async def echo_later(request: Request) -> Response:
    return await while_connected(
        request.receive, asyncio.sleep(0.05, PlainTextResponse(await request.body()))
    )


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmlxError)
    return errors.response(error, request.scope)


def guarded(**options: object) -> AccessGuard:
    app = FastAPI(openapi_url=None)
    app.add_api_route("/echo", echo, methods=["GET", "POST"])
    app.add_api_route("/later", echo_later, methods=["POST"])
    app.add_api_route("/v1/messages", echo, methods=["POST"])
    app.add_api_route("/health", echo, methods=["GET"])
    app.add_exception_handler(OmlxError, refused)
    return AccessGuard(app, **options)


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    app = guarded(hosts=["mac.tailnet.example"], origins=["http://app.example"], max_body_bytes=100)
    with serving(app) as url, httpx.Client(base_url=url) as http:
        yield http


@pytest.fixture(scope="module")
def keyed() -> Iterator[httpx.Client]:
    with serving(guarded(keys=ApiKeys(KEY))) as url, httpx.Client(base_url=url) as http:
        yield http


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost:1234",
        "LOCALHOST.",
        "[::1]:80",
        "192.168.1.4:8000",
        "mac.tailnet.example",
    ],
)
def test_own_names_addresses_and_allowed_hosts_pass(plain: httpx.Client, host: str) -> None:
    assert plain.get("/echo", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example:80",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1:8504/evil",
        "127.0.0.1?evil.example",
        "127.0.0.1#evil.example",
        "127.0.0.1:80:80",
        "127.0.0.1:a",
        "127.0.0.1 evil.example",
        "[127.0.0.1",
        "[::1",
        "[::1]evil.example",
        "",
    ],
)
def test_a_rebound_name_is_refused_on_every_method(plain: httpx.Client, host: str) -> None:
    for method in ("GET", "POST"):
        answer = plain.request(method, "/echo", headers={"Host": host})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "guard.host"
        assert answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "origin",
    [
        "http://app.example",
        "HTTP://APP.example",
        "app://obsidian.md",
        "tauri://localhost",
        "vscode-webview://0f3a8c",
        "vscode-file://vscode-app",
    ],
)
def test_the_server_itself_desktop_apps_and_allowed_origins_pass(
    plain: httpx.Client, origin: str
) -> None:
    for sent in (str(plain.base_url).rstrip("/"), origin):
        for method in ("GET", "POST"):
            assert plain.request(method, "/echo", headers={"Origin": sent}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://app.example.evil.example",
        "null",
        "http://127.0.0.1:1",
        "http://localhost:5173",
        "file://",
        "http://[",
        "http://app://x",
        "http://tauri.localhost.evil.example",
        "chrome-extension://abc",
        "app:obsidian.md",
        "",
    ],
)
def test_other_origins_are_refused_on_every_method(plain: httpx.Client, origin: str) -> None:
    for method in ("GET", "POST"):
        answer = plain.request(method, "/echo", headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "guard.origin")


@pytest.mark.parametrize("allowed", ["*", "http://app.example"])
def test_the_dashboard_is_for_its_own_pages_alone(allowed: str) -> None:
    app = guarded(origins=[allowed])
    with serving(app) as url, httpx.Client(base_url=url) as http:
        for method, origin in product(("GET", "POST"), ("app://obsidian.md", "http://app.example")):
            answer = http.request(method, "/admin/api/x", headers={"Origin": origin})
            assert answer.json()["error"]["code"] == "guard.origin"


def test_a_body_over_the_cap_is_413_with_and_without_a_length(plain: httpx.Client) -> None:
    assert plain.post("/echo", content=b"x" * 100).text == "x" * 100
    assert plain.post("/echo", content=b"x" * 101).status_code == 413
    answer = plain.post("/echo", content=iter([b"x" * 60, b"x" * 60]))
    assert answer.status_code == 413
    assert answer.json()["error"]["params"] == {"limit_bytes": 100}


def until_closed(url: str, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the server's answer to these bytes, up to the end of the connection."""
    with socket.create_connection(
        ("127.0.0.1", httpx.URL(url).port or 0), PATIENCE_S
    ) as connection:
        connection.sendall(request)
        head, _, body = b"".join(iter(lambda: connection.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize("path", ["/echo", "/v1/messages"])
@pytest.mark.parametrize("begun", [b"", b"12345"])
def test_a_body_that_stops_coming_is_408_and_the_connection_ends(path: str, begun: bytes) -> None:
    with serving(guarded(body_timeout_s=0.01)) as url:
        request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        head, body = until_closed(url, request.encode() + begun)
    assert head.startswith(b"HTTP/1.1 408 ")
    refusal = json.loads(body)
    assert refusal["error"]["code"] == "guard.slow"
    assert ("type" in refusal) == (path == "/v1/messages")


def test_a_client_that_waits_for_its_answer_may_be_silent() -> None:
    with serving(guarded(body_timeout_s=0.01)) as url:
        head = b"POST /later HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        request = head + b"Content-Length: 5\r\n\r\n12345"
        head, body = until_closed(url, request)
    assert (head.partition(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"12345")


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
def test_the_key_opens(keyed: httpx.Client, name: str) -> None:
    prefix = b"Bearer " if name == "Authorization" else b""
    assert keyed.get("/echo", headers={name: prefix + KEY.encode()}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer no"}, {"Authorization": b"Bearer \xff\xfe"}, {"x-api-key": ""}],
)
def test_anything_else_is_401_without_repeating_it(
    keyed: httpx.Client, headers: dict[str, str]
) -> None:
    answer = keyed.get("/echo", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert KEY not in answer.text
    assert "no" not in answer.json()["error"]["params"]


def test_health_needs_no_key(keyed: httpx.Client) -> None:
    assert keyed.get("/health").status_code == 200


def test_keys_compare_as_bytes_in_either_encoding() -> None:
    assert same_key("é".encode(), "é")
    assert same_key("é".encode("latin-1"), "é")
    assert not same_key(b"", "é")
    assert not same_key(b"\\u65e5x", "日")


def test_hostname_of_a_header() -> None:
    assert [hostname(h) for h in ("A.b:8", "[::1]:8", "a.", "[")] == ["a.b", "::1", "a", ""]
    assert [hostname(h) for h in ("a:", "[fe80::1%en0]", "a@b", "a/b")] == [
        "a",
        "fe80::1%en0",
        "",
        "",
    ]


def test_only_what_has_sessions_is_open_beside_the_key() -> None:
    app = FastAPI(openapi_url=None)
    for path in ("/admin", "/admin/x", "/administrators"):
        app.add_api_route(path, echo, methods=["GET"])
    with serving(AccessGuard(app, keys=ApiKeys(KEY))) as url, httpx.Client(base_url=url) as http:
        assert [
            http.get(path).status_code for path in ("/admin", "/admin/x", "/administrators")
        ] == [200, 200, 401]
