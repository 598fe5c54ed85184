"""Several servers in one home folder: entries by process, the port that is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from omlx.cli.main import main
from omlx.cli.serve.address import FILE, find_server, find_servers, published, running, without_flag
from omlx.settings.file import locked, read, write
from tests.cli.test_main import Capture, alone
from tests.models.trees import model

__all__ = ["alone"]


class Healthy(BaseHTTPRequestHandler):
    root = b"omlx 9 is running\n"

    def do_GET(self) -> None:
        body = self.root if self.path == "/" else b'{"status":"ok"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class Other(Healthy):
    root = b"another program"


@contextmanager
def answering(kind: type[Healthy] = Healthy) -> Iterator[int]:
    """Yield the port of a server that is healthy."""
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def enter(home: Path, pid: int, address: str) -> None:
    """Write the entry of another process."""
    with locked(home):
        entries = dict(read(home / FILE).values.get("servers", {}))
        write(home / FILE, {"servers": {**entries, str(pid): {"url": address}}})


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_the_end_of_one_server_leaves_the_other_one_known(tmp_path: Path) -> None:
    with answering() as first, answering() as second:
        enter(tmp_path, os.getppid(), f"http://127.0.0.1:{first}")
        with published(tmp_path, f"http://127.0.0.1:{second}"):
            urls = [server.url for server in find_servers(tmp_path)]
            assert urls == [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}"]
        assert find_server(tmp_path) == f"http://127.0.0.1:{first}"


def test_a_killed_server_is_forgotten(tmp_path: Path) -> None:
    with answering() as port:
        enter(tmp_path, ended_pid(), f"http://127.0.0.1:{port}")
        assert running(tmp_path) == []
        with published(tmp_path, f"http://127.0.0.1:{port}", [tmp_path / "models"]):
            (server,) = running(tmp_path)
            assert (server.pid, server.folders) == (os.getpid(), (tmp_path / "models",))
    assert not (tmp_path / FILE).exists()


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"servers": 1}')
    with published(tmp_path, "http://127.0.0.1:9"):
        assert running(tmp_path) == []
    assert (tmp_path / FILE).read_text() == '{"servers": 1}'


@pytest.mark.parametrize(
    ("kind", "said"), [(Healthy, "omlx itself already runs at"), (Other, "is in use")]
)
def test_a_taken_port_is_answered_with_the_whole_command(
    alone: Path, capsys: Capture, kind: type[Healthy], said: str
) -> None:
    with answering(kind) as port:
        words = [
            "omlx-demo/draft",
            "--port",
            str(port),
            "--max-waiting",
            "3",
            "--api-key",
            "secret",
        ]
        assert main(["serve", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "serve omlx-demo/draft --max-waiting 3 --port " in error
    assert "secret" not in error


def test_a_second_server_says_where_the_first_one_runs(alone: Path, capsys: Capture) -> None:
    with answering() as port:
        enter(alone / ".omlx", os.getppid(), f"http://127.0.0.1:{port}")
        # Ends before it serves: a model group needs hosts that exist.
        assert (
            main(["serve", "omlx-demo/draft", "--hosts", "nowhere.invalid,b", "--port", "0"]) != 0
        )
    assert f"already runs at http://127.0.0.1:{port}" in capsys.readouterr().err


def test_models_of_a_servers_own_folders_are_known_to_other_commands(
    alone: Path, capsys: Capture
) -> None:
    model(alone / "elsewhere/mine")
    assert main(["config", "set", "temperature", "0", "--model", "mine"]) == 2
    capsys.readouterr()
    with published(alone / ".omlx", "http://127.0.0.1:9", [alone / "elsewhere"]):
        assert main(["config", "set", "temperature", "0", "--model", "mine"]) == 0
        assert main(["models", "--json"]) == 0
    assert "mine" in {record["id"] for record in json.loads(capsys.readouterr().out)}


def test_without_flag() -> None:
    words = ["serve", "--port", "1", "m", "--port=2", "--ports", "3"]
    assert without_flag(words, "--port") == ["serve", "m", "--ports", "3"]
