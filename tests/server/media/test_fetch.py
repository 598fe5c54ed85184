"""Images from addresses: public ones only, resolved once, no redirects, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Thread
from typing import Any

import pytest

from omlx.errors import BadRequest
from omlx.server.request.content import MAX_BYTES
from omlx.server.request.media.images import Address, UrlReader, is_public
from tests.models.vision.loaded import picture
from tests.server.media.pictures import SMOL, asking, file_of, seeing

PUBLIC = ("93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946")
PRIVATE = (
    *("127.0.0.1", "127.8.9.10", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
    *("240.0.0.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "2001:db8::1"),
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_at_usual_ports(address: str) -> None:
    assert is_public(ip_address(address), 443)
    assert is_public(ip_address(address), 80)
    assert not is_public(ip_address(address), 8080)


@pytest.mark.parametrize("address", PRIVATE)
def test_every_private_form_is_refused(address: str) -> None:
    assert not is_public(ip_address(address), 80)


def code_of(url: str, reader: UrlReader) -> str:
    with pytest.raises(BadRequest) as refused:
        asyncio.run(reader.read(url, "image"))
    return refused.value.code


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "localhost",
            "LOCALHOST.",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
        ),
        *(
            "0",
            "0.0.0.0",
            "169.254.169.254",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[fe80::1%25lo]",
        ),
        *("[64:ff9b::127.0.0.1]", "10.0.0.1:80"),
    ],
)
def test_no_spelling_of_this_machine_is_connected_to(host: str) -> None:
    with local_server(b"") as (port, asked):
        for url in (f"http://{host}/", f"http://{host.removesuffix(':80')}:{port}/"):
            code = code_of(url, UrlReader(timeout_s=2))
            assert code in ("image.url_private", "image.url_failed")
        assert not asked


@pytest.mark.parametrize(
    "url", ["http:///x", "http://", "http://user:pw@example.com/", "http://u@127.0.0.1/"]
)
def test_addresses_without_host_or_with_a_user(url: str) -> None:
    assert code_of(url, UrlReader()) == "image.source"


def test_a_name_is_resolved_once() -> None:
    """A second answer, which leads elsewhere, is never asked for."""
    answers = ["127.0.0.1", "127.0.0.2"]
    with local_server(file_of(picture(8, 8))) as (port, asked):

        async def resolve(host: str, at: int) -> list[Address]:
            return [ip_address(answers.pop(0))]

        def allowed(address: Address, at: int) -> bool:
            return str(address) == "127.0.0.1"

        reader = UrlReader(resolve, allowed)
        asyncio.run(reader.read(f"http://rebinding.example:{port}/cat.png?a=1", "image"))
        assert answers == ["127.0.0.2"]
        assert asked == [("/cat.png?a=1", f"rebinding.example:{port}")]
        assert code_of(f"http://rebinding.example:{port}/", reader) == "image.url_private"


def test_all_addresses_of_a_name_must_be_public() -> None:
    async def resolve(host: str, at: int) -> list[Address]:
        return [ip_address("8.8.8.8"), ip_address("127.0.0.1")]

    assert code_of("http://both.example/", UrlReader(resolve)) == "image.url_private"


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def local_server(body: bytes, answer: Answer | None = None) -> Iterator[tuple[int, list[Any]]]:
    """A web server on loopback; yields its port and the (path, host) that it was asked for."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["host"]))
            if answer is not None:
                answer(self)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def anywhere(address: Address, port: int) -> bool:
    return True


def redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://169.254.169.254/")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(2 * MAX_BYTES >> 20):
            handler.wfile.write(bytes(1 << 20))
    except OSError:
        pass  # the reader has had enough


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"abc")


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)  # until the reader goes


def no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (redirect, "image.url_failed"),
        (endless, "image.too_large"),
        (cut_off, "image.url_failed"),
        (silent, "image.url_failed"),
        (no_http, "image.url_failed"),
    ],
)
def test_what_a_server_can_do_is_bounded(answer: Answer, code: str) -> None:
    with local_server(b"", answer) as (port, asked):
        reader = UrlReader(allowed=anywhere, timeout_s=1 if answer is silent else 10)
        assert code_of(f"http://127.0.0.1:{port}/", reader) == code
        assert len(asked) == 1


@pytest.mark.needs_extra
def test_an_image_is_read_from_an_address_where_that_is_on(tmp_path: Any) -> None:
    with (
        local_server(file_of(picture(40, 60))) as (port, asked),
        seeing(tmp_path, SMOL, urls=UrlReader(allowed=anywhere)) as running,
    ):
        http = running.http
        url = f"http://127.0.0.1:{port}/cat.png"
        body = {"model": SMOL, "messages": [asking("What?", url)], "max_tokens": 2}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        source = {"type": "url", "url": url}
        message = {"role": "user", "content": [{"type": "image", "source": source}]}
        body = {"model": SMOL, "messages": [message], "max_tokens": 2}
        assert http.post("/v1/messages", json=body).status_code == 200
        assert len(asked) == 2


@pytest.mark.needs_extra
def test_this_machine_is_not_read_where_addresses_are_on(tmp_path: Any) -> None:
    with (
        local_server(file_of(picture(40, 60))) as (port, asked),
        seeing(tmp_path, SMOL, urls=UrlReader()) as running,
    ):
        http = running.http
        for host in ("127.0.0.1", "localhost", "[::1]", "2130706433"):
            body = {"model": SMOL, "messages": [asking(f"http://{host}:{port}/")]}
            error = http.post("/v1/chat/completions", json=body).json()["error"]
            assert error["code"] in ("image.url_private", "image.url_failed")
        assert not asked
