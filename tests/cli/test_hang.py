"""Devices that never answer or take no more work: the server says so and ends, and others go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.soak.faults import Restarter, Tally, ask, supervised
from omlx.cli.serve.ending import ENGINE_DIED
from tests.cli.inside import omlx
from tests.cli.serving import Serving, started
from tests.engine.faults import IGNORED, INTERACTIVITY
from tests.lanes import few
from tests.server.running import DRAFT, PATIENCE_S, TARGET

LONG: dict[str, Any] = {
    "model": DRAFT,
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 3000,
    "ignore_eos": True,
}
SHORT = {**LONG, "max_tokens": 3}
POLL_S = 0.02


@dataclass(frozen=True)
class Hanging:
    """A server that hangs once `hang` is called; `errors` is its standard error so far."""

    serving: Serving
    http: httpx.Client
    folder: Path

    @property
    def process(self) -> subprocess.Popen[str]:
        return self.serving.process

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    @property
    def errors(self) -> str:
        return self.serving.errors

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, self.errors
            time.sleep(POLL_S)  # another process has no event to wait for

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    @property
    def health(self) -> httpx.Response | None:
        """None: the server accepts no connection."""
        try:
            return self.http.get("/health")
        except httpx.TransportError:
            return None


@contextmanager
def hanging(folder: Path) -> Iterator[Hanging]:
    program = [sys.executable, "-m", "tests.cli.hanging", str(folder)]
    with (
        started(folder, DRAFT, "--port", "0", until="http", program=program) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http,
    ):
        yield Hanging(server, http, folder)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hanging]:
    with hanging(tmp_path) as running:
        yield running


def code_of(line: str) -> str:
    """The code of the error in the last line of a stream."""
    return str(json.loads(line.removeprefix("data: "))["error"]["code"])


def last_line(server: Hanging, begun: Callable[[], object]) -> str:
    """Stream an answer to its last line; call `begun` when its first has come."""
    last = ""
    with server.http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as got:
        for line in got.iter_lines():
            begun()
            last = line or last
    return last


def test_a_hang_is_said_to_every_client_and_ends_the_process(
    server: Hanging, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with hanging(tmp_path_factory.mktemp("other")) as other, ThreadPoolExecutor(3) as pool:
        whole = pool.submit(server.http.post, "/v1/chat/completions", json=LONG)
        messages = pool.submit(server.http.post, "/v1/messages", json=LONG)
        stream = pool.submit(last_line, server, lambda: server.touch("hang"))
        server.wait_for(lambda: server.health is not None and server.health.status_code == 503)
        health = server.health
        assert health is not None
        assert health.json()["error"]["code"] == "engine.hung"
        assert "omlx_engine_up 0.0" in server.http.get("/metrics").text.splitlines()
        assert other.http.post("/v1/chat/completions", json=SHORT).status_code == 200
        assert code_of(stream.result()) == "engine.hung"
        for answer in (whole.result(), messages.result()):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine.hung"
        late = server.http.post("/v1/chat/completions", json=LONG)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "engine.hung")
        server.touch("seen")
        assert server.wait() == ENGINE_DIED
    assert "hanging.py" in server.errors, "it says where it hangs"
    assert "Traceback" not in server.errors


def test_a_signal_ends_a_server_that_hangs_without_the_time_of_a_drain(server: Hanging) -> None:
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(server.http.post, "/v1/chat/completions", json=LONG)
        stream = pool.submit(last_line, server, lambda: server.touch("hang"))
        server.wait_for((server.folder / "hang").exists)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == ENGINE_DIED
        assert code_of(stream.result()) == "engine.hung"
        assert whole.result().status_code == 503
    assert "Traceback" not in server.errors


@pytest.mark.parametrize("number", few((signal.SIGTERM, signal.SIGINT), signal.SIGINT))
def test_a_second_signal_ends_the_process_at_once(server: Hanging, number: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(last_line, server, lambda: server.touch("begun"))
        server.wait_for((server.folder / "begun").exists)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for(lambda: server.health is None)
        assert server.process.poll() is None
        server.process.send_signal(number)
        # A process that has left Python's own code already has the signal's default action.
        assert server.wait() in (128 + number, -number)
        with pytest.raises(httpx.TransportError):
            stream.result()


def test_requests_that_outlive_the_drain_get_an_error_and_the_server_ends_well(
    tmp_path: Path,
) -> None:
    (tmp_path / "short-drain").touch()
    with hanging(tmp_path) as server, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(server.http.post, "/v1/chat/completions", json=LONG)
        stream = pool.submit(last_line, server, lambda: server.touch("begun"))
        server.wait_for((tmp_path / "begun").exists)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert code_of(stream.result()) == "engine.stopped"
        assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (
            503,
            "engine.stopped",
        )
        assert "Traceback" not in server.errors


BODY = {
    "model": TARGET,
    "messages": [{"role": "user", "content": "Count to 30 please."}],
    "max_tokens": 80,
    "seed": 3,
    "stream": True,
    "speculation": "off",
}
CHAT = "/v1/chat/completions"
QUIET = ("--no-calibrate",)
"""Passes of a calibration would be counted, too."""


def test_an_answer_outlives_a_device_that_ignores_work(tmp_path: Path) -> None:
    lost = {"site": "decode", "nth": 25, "text": IGNORED, "times": 1 << 30}
    server = Restarter(tmp_path, lambda number: lost if number == 0 else None, QUIET)
    tally = Tally()
    with supervised(server), httpx.Client(timeout=PATIENCE_S) as client:
        answer, code = ask(client, server.url, CHAT, BODY, "one", tally)
        again, _ = ask(client, server.url, CHAT, BODY, "undisturbed", tally)
        assert code is None
        assert answer == again
        assert len(server.statuses) == 1
    assert server.statuses == [3, 0]
    assert sum(tally.counts.values()) > 0, "the client was cut off"
    doctor = omlx(tmp_path, "doctor", "--home", str(tmp_path / "omlx"))
    assert "submissions_ignored · " + IGNORED in doctor.stdout


@pytest.mark.slow
def test_a_pass_that_fails_once_is_computed_again(tmp_path: Path) -> None:
    once = {"site": "decode", "nth": 3, "text": INTERACTIVITY}
    server = Restarter(tmp_path, lambda number: once, QUIET)
    tally = Tally()
    with supervised(server), httpx.Client(timeout=PATIENCE_S) as client:
        answer = client.post(server.url + CHAT, json=BODY | {"stream": False}).json()
        again, _ = ask(client, server.url, CHAT, BODY, "again", tally)
        health = client.get(f"{server.url}/health").json()
        metrics = client.get(f"{server.url}/metrics").text
    message = answer["choices"][0]["message"]
    assert (message.get("reasoning_content") or "") + (message["content"] or "") == again
    assert answer["timings"]["restarts"] == 1
    assert health["status"] == "ok"
    assert health["device_error"]["kind"] == "impacting_interactivity"
    assert 'omlx_device_errors_total{kind="impacting_interactivity"} 1.0' in metrics
    assert server.statuses == [0]
