"""Sessions: a conversation saved by one server, opened and continued by another."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.cli.main import main
from omlx.cli.serve.address import published
from omlx.models.pool.pool import build_pool
from omlx.models.pool.prefix_disk import open_disks, stop_engine
from omlx.server.endpoints.sessions import SessionEndpoints
from omlx.settings.schema import Settings
from tests.lanes import few
from tests.server.running import HYBRID, PATIENCE_S, TARGET, omlx

RESPONSES = "/v1/responses"
RULES = "You edit small programs with care, and say what you changed. " * 24
SHARED: dict[str, Any] = {"instructions": RULES, "max_output_tokens": 8, "temperature": 0.7}


@contextmanager
def served(home: Path, **more: Any) -> Iterator[httpx.Client]:
    """A server of a home folder, with prefixes on disk, that commands find."""
    settings = Settings(home=home, prefix_disk=1 << 26, speculation="off", **more)
    home.mkdir(exist_ok=True)
    closing = []

    def build(engine: Any, *parts: Any, **named: Any) -> Any:
        disks = open_disks(settings, engine)
        closing.append(partial(stop_engine, engine, disks))
        return build_pool(engine, *parts, disks=disks, **named)

    with omlx(settings, build=build) as running, published(home, running.url):
        yield running.http
        closing[0]()


def continued(client: httpx.Client, model: str, id: str) -> tuple[str, int]:
    """Return the text of the next answer, and how many tokens of its prompt were cached."""
    body = SHARED | {"model": model, "previous_response_id": id, "input": "Another.", "seed": 4}
    answer = client.post(RESPONSES, json=body).json()
    cached = answer["usage"]["input_tokens_details"]["cached_tokens"]
    return answer["output"][-1]["content"][0]["text"], cached


def session(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> str:
    assert main(["session", *words, "--home", str(home)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> str:
    assert main(["session", *words, "--home", str(home)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("model", few((HYBRID, TARGET), HYBRID))
def test_another_server_continues_a_saved_conversation(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "file"
    with served(here) as client:
        asked = SHARED | {"model": model, "input": "Name a river.", "seed": 3, "top_k": 9}
        first = client.post(RESPONSES, json=asked).json()
        assert (first["seed"], first["top_k"]) == (3, 9)
        saved = session(capsys, here, "save", first["id"], str(file))
        tokens, kept = [int(word) for word in saved.split() if word.isdecimal()][:2]
        assert tokens - 64 < kept <= tokens
        fork = session(capsys, here, "fork", first["id"]).strip()
        expected, _ = continued(client, model, first["id"])
        assert continued(client, model, fork)[0] == expected
    with served(there) as client:
        opened = session(capsys, there, "open", str(file))
        assert opened.startswith(first["id"])
        assert f"{kept} of them restored" in opened
        assert client.get(f"{RESPONSES}/{first['id']}").json() == first
        text, cached = continued(client, model, first["id"])
        assert (text, cached >= kept) == (expected, True)
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b'"format":"', b'"farmat":"', 1))
        opened = session(capsys, there, "open", str(file))
        assert "(format)" in opened.splitlines()[1]
        for old, new, reason in (
            (b'"model":"omlx-demo', b'"model":"omlx-demx', "not found"),
            (b'"role":"assistant"', b'"rule":"assistant"', "its conversation is none"),
            (b'"output":', b'"outpux":', "its conversation is none"),
            (b'"role":"user"', b'"role":[1234]', "one of its items is none"),
            (b'"temperature":0.7', b'"temperature":NaN', "its response is none"),
        ):
            file.write_bytes(whole.replace(old, new))
            assert reason in refused(capsys, there, "open", str(file))
        other = TARGET if model == HYBRID else HYBRID
        for old, new in ((first["id"], first["id"][::-1]), (model, other)):
            file.write_bytes(whole.replace(old.encode(), new.encode(), 1))  # in the head
            assert "its response is another one" in refused(capsys, there, "open", str(file))
        assert "No such file" in refused(capsys, there, "open", str(tmp_path / "none"))
        assert "not found" in refused(capsys, there, "save", "resp_none", str(file))
        assert "no path" in refused(capsys, there, "save", first["id"], str(tmp_path))
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        assert "no regular file" in refused(capsys, there, "open", str(pipe))
        assert "no path" in refused(capsys, there, "save", first["id"], str(pipe))
        assert list((there / "sessions").iterdir()) == []


def full(source: Path, target: Path) -> None:
    """Move a part of a file, to a file system that is full then."""
    Path(target).write_bytes(Path(source).read_bytes()[:100])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_not_saved_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier file stays; what the server has written for a client that has gone does not."""
    home, folder, write = tmp_path / "home", tmp_path / "folder", SessionEndpoints._write
    folder.mkdir()
    (folder / "earlier").write_bytes(b"earlier")
    monkeypatch.setattr("omlx.cli.servers.shutil.move", full)
    written, gone = threading.Event(), threading.Event()

    async def slowly(self: SessionEndpoints, *arguments: Any) -> Any:
        result = await write(self, *arguments)
        written.set()
        await asyncio.to_thread(gone.wait, PATIENCE_S)
        return result

    with served(home) as client:
        asked = {"model": TARGET, "input": "Name a river.", "max_output_tokens": 4}
        id = client.post(RESPONSES, json=asked).json()["id"]
        for name in ("earlier", "new"):
            assert "No space left" in refused(capsys, home, "save", id, str(folder / name))
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [
            ("earlier", b"earlier")
        ]
        monkeypatch.setattr(SessionEndpoints, "_write", slowly)
        with socket.create_connection((client.base_url.host, client.base_url.port)) as left:
            body = json.dumps({"id": id, "file": "0" * 32})
            head = f"Host: {client.base_url.host}\r\nContent-Length: {len(body)}"
            left.sendall(f"POST /v1/sessions/save HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
            assert written.wait(PATIENCE_S)
        assert (home / "sessions" / ("0" * 32)).exists()
        gone.set()
        until = time.monotonic() + PATIENCE_S
        while list((home / "sessions").iterdir()):
            assert time.monotonic() < until
            time.sleep(0.01)  # the server deletes it once it sees that the client has gone
