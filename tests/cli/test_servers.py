"""Several servers in one home folder; `omlx ps`, `stop`, `rm` and `logs`."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
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
from omlx.models.catalog.discovery import BUNDLED, discover
from omlx.settings.file import locked, read, write
from omlx.settings.schema import Settings
from omlx.telemetry import log
from tests.admin.running import Administered, administered
from tests.cli.inside import Capture, omlx
from tests.models.trees import hub_model, model
from tests.server.running import TARGET


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


@pytest.fixture(autouse=True)
def _no_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Administered]:
    shutil.copytree(BUNDLED / TARGET, tmp_path / "models/mine")
    registry = discover(Settings(home=tmp_path), {"HOME": str(tmp_path)})
    with (
        administered(tmp_path, registry, default="mine") as running,
        published(tmp_path, running.running.url),
    ):
        yield running


def test_ps_lists_what_is_in_memory_until_it_is_stopped(
    server: Administered, capsys: Capture
) -> None:
    home = ["--home", str(server.home)]
    assert main(["run", "mine", "Hi", *home]) == 0
    capsys.readouterr()
    assert main(["ps", *home]) == 0
    summary, head, row = capsys.readouterr().out.splitlines()
    assert summary.startswith(server.running.url)
    assert head.split() == ["MODEL", "MEMORY", "CONTEXT", "REQUESTS", "IDLE"]
    assert row.split()[0] == "mine"
    assert main(["ps", "--json", *home]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["used_bytes"] > 0
    assert [(card["id"], card["active"]) for card in record["models"]] == [("mine", 0)]
    assert main(["stop", "mine", *home]) == 0
    capsys.readouterr()
    assert main(["ps", *home]) == 0
    assert "No model is in memory." in capsys.readouterr().out


def test_without_a_server_there_is_nothing_to_list_or_stop(alone: Path, capsys: Capture) -> None:
    for words in (["ps"], ["stop"], ["stop", "x"]):
        assert main(words) == 2
        assert "No server is running" in capsys.readouterr().err


def test_stop_ends_the_chosen_server_and_waits(alone: Path, capsys: Capture) -> None:
    waiting = "import signal; signal.pause()"
    home = alone / ".omlx"
    with answering() as first, answering() as second:
        commands = [[sys.executable, "-c", waiting] for _ in range(2)]
        processes = [subprocess.Popen(command) for command in commands]
        for process, port in zip(processes, (first, second), strict=True):
            enter(home, process.pid, f"http://127.0.0.1:{port}")
        assert main(["stop"]) == 2
        assert f"127.0.0.1:{first}, http://127.0.0.1:{second}" in capsys.readouterr().err
        reaper = Thread(target=processes[1].wait)
        reaper.start()
        try:
            assert main(["stop", "--port", str(second)]) == 0
            reaper.join()
            assert f"127.0.0.1:{second} ends" in capsys.readouterr().out
            assert [server.pid for server in running(home)] == [processes[0].pid]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def test_rm_deletes_own_models_after_a_question(server: Administered, capsys: Capture) -> None:
    home = ["--home", str(server.home)]
    assert main(["run", "mine", "Hi", *home]) == 0
    capsys.readouterr()
    assert main(["rm", "mine", *home]) == 2
    assert "--yes" in capsys.readouterr().err
    assert main(["rm", TARGET, "--yes", *home]) == 2
    assert "Delete it there" in capsys.readouterr().err
    assert (BUNDLED / TARGET).exists()
    assert main(["rm", "mine", "--yes", *home]) == 0
    assert "mine is deleted" in capsys.readouterr().out
    assert not (server.home / "models/mine").exists()
    assert main(["ps", *home]) == 0
    assert "No model is in memory." in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("", 1), ("y", 0)])
def test_rm_asks_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    cache = tmp_path / ".cache/huggingface/hub"
    hub_model(cache, "org/whole")
    monkeypatch.setattr("sys.stdin", Keyboard(f"{answer}\n"))
    done = omlx(tmp_path, "rm", "whole")
    assert done.returncode == status, done.stderr
    assert "Delete org/whole" in done.stdout
    assert (cache / "models--org--whole").exists() is bool(status)


def test_a_link_to_a_folder_elsewhere_is_not_followed(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED / TARGET, tmp_path / "elsewhere")
    (tmp_path / ".omlx/models").mkdir(parents=True)
    (tmp_path / ".omlx/models/linked").symlink_to(tmp_path / "elsewhere")
    assert omlx(tmp_path, "rm", "linked", "--yes").returncode == 2
    assert (tmp_path / "elsewhere/config.json").exists()


def test_rm_deletes_the_repository_of_a_snapshot(tmp_path: Path) -> None:
    hub_model(tmp_path / ".omlx/models", "org/copied")
    done = omlx(tmp_path, "rm", "copied", "--yes")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / ".omlx/models/models--org--copied").exists()


def test_rm_keeps_a_folder_with_other_models(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED / TARGET, tmp_path / ".omlx/models/org/whole")
    (tmp_path / ".omlx/models/org/left.safetensors").write_bytes(b"")
    done = omlx(tmp_path, "rm", "org", "--yes")
    assert (done.returncode, "org/whole" in done.stderr) == (2, True), done.stderr
    assert (tmp_path / ".omlx/models/org/whole/config.json").exists()


def test_rm_takes_no_pattern_for_a_model(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED / TARGET, tmp_path / ".omlx/models/mine")
    assert omlx(tmp_path, "config", "set", "model_map", "claude-*=mine").returncode == 0
    assert omlx(tmp_path, "rm", "claude-5", "--yes").returncode == 2
    assert omlx(tmp_path, "rm", "mine:latest", "--yes").returncode == 0
    assert not (tmp_path / ".omlx/models/mine").exists()


def test_logs_are_shown_in_their_human_form(alone: Path, capsys: Capture) -> None:
    assert main(["logs"]) == 2
    assert "no log yet" in capsys.readouterr().err
    home = alone / ".omlx"
    log.set_up(home)
    try:
        for number in range(3):
            logging.getLogger("omlx.test").warning("line %s \x1b", number)
    finally:
        log.tear_down()
    assert main(["logs", "-n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2].partition(" ")[2] for line in lines] == [
        f"warning: line {number} \\x1b" for number in (1, 2)
    ]
