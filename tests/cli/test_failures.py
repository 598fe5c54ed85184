"""A rank of a group fails, in each way and state: requests hear of it, and all serves again."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeAlias

import httpx
import pytest

from omlx.cli.stage.supervisor import PAUSES_S
from tests.cli.changed_rank import SERVING, STARTING, WAYS, Fault, faults
from tests.cli.staged_group import PATIENCE_S, Group, changed_ranks, chat, group, wait_until_gone

Record: TypeAlias = Callable[[str, object], None]

TIMEOUT_S = 4.0
SLACK_S = 15.0
"""What a loaded machine may add; the times that count are in docs/stages.md."""

REQUESTS: dict[str, dict[str, Any]] = {
    "prefill": {"messages": [{"role": "user", "content": "one two three four " * 250}]},
    "flight": {"speculation": "off", "temperature": 1.5, "seed": 3},
    "draft": {"temperature": 0, "speculation": "draft", "num_draft_tokens": 4},
}
PLAIN = chat(speculation="off")
"""A request at which no fault strikes."""

RANKS = [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]


class OpenRequests:
    """Requests that are open when a rank fails: the moment, status and last line of each."""

    def __init__(self, running: Group, state: str, max_tokens: int = 3000) -> None:
        self.endings: list[tuple[float, int, str]] = []
        self.streaming = Event()
        self._url = f"{running.url}/v1/chat/completions"
        body = chat(max_tokens=max_tokens, ignore_eos=True, **REQUESTS[state])
        bodies = [{**body, "stream": True}]
        if state != "draft":  # no drafts are made for rows of a batch
            bodies.append(body)
        self._threads = [Thread(target=self._ask, args=(body,)) for body in bodies]
        for thread in self._threads:
            thread.start()

    def join(self) -> list[tuple[float, int, str]]:
        for thread in self._threads:
            thread.join()
        return self.endings

    def _ask(self, body: dict[str, Any]) -> None:
        status, last = 0, ""
        try:
            with httpx.stream("POST", self._url, json=body, timeout=90) as answer:
                status = answer.status_code
                for line in answer.iter_lines():
                    self.streaming.set()
                    last = line or last
        except httpx.TransportError as error:
            last = type(error).__name__
        self.endings.append((time.monotonic(), status, last))


def first_refusal(running: Group, restarts: int) -> tuple[float, str] | None:
    """The moment and the code of /health's first 503 before the group serves again, if any."""
    while running.announced <= restarts:
        try:
            answer = httpx.get(f"{running.url}/health", timeout=PATIENCE_S)
        except httpx.TransportError:  # the leader has ended
            continue
        if answer.status_code == 503:
            return time.monotonic(), answer.json()["error"]["code"]
    return None


def serves_again(running: Group, fault: Fault, announced: int, record: Record) -> None:
    assert fault.moment is not None
    running.wait_for(lambda: running.announced == announced)
    waited = PAUSES_S[fault.restarts] - PAUSES_S[0]  # it grows with each failure
    record(f"{fault.how} serving", time.monotonic() - fault.moment - waited)
    assert running.http.post("/v1/chat/completions", json=PLAIN).status_code == 200
    restarts = f"omlx_stage_restarts_total {fault.restarts + 1}.0"
    assert restarts in running.http.get("/metrics").text.splitlines()


def fail(running: Group, fault: Fault, record: Record) -> None:
    """Have a rank of a serving group fail; compare what follows with the documentation."""
    running.wait_for(lambda: running.announced == fault.restarts + 1)
    family = running.family
    pid = [*running.pids("--lead"), *running.pids("stage")][fault.rank]
    requests = None
    if fault.at == "idle":
        os.kill(pid, signal.SIGUSR1)
    else:
        requests = OpenRequests(running, fault.at)
    running.wait_for(lambda: fault.moment is not None)
    moment = fault.moment
    assert moment is not None
    refusal = first_refusal(running, fault.restarts + 1)
    for ended, status, last in requests.join() if requests is not None else ():
        record(f"{fault.how} error", ended - moment)
        assert ended - moment < SLACK_S
        assert status in (200, 503, 0)
        if fault.rank or fault.how == "exception":  # else the leader cannot say anything
            assert '"stage.lost"' in last
    if fault.rank:
        assert refusal is not None
        assert refusal[1] == "stage.lost"
        record(f"{fault.how} health", refusal[0] - moment)
    serves_again(running, fault, fault.restarts + 2, record)
    record(f"{fault.how} gone", wait_until_gone(family - running.family))


def started(ranks: int, given: list[Fault], home: Path) -> Any:
    hosts = ",".join(["127.0.0.1"] * ranks)
    environment = changed_ranks(faults(*given))
    return group(home, "--stage-timeout", str(TIMEOUT_S), hosts=hosts, environment=environment)


def end_supervisor(running: Group, state: str, record: Record) -> None:
    """Freeze the supervisor, which nothing needs while all is well; then kill it. Both happen
    with requests in flight.
    """
    before, after = OpenRequests(running, state, max_tokens=60), OpenRequests(running, state)
    assert before.streaming.wait(PATIENCE_S)
    assert after.streaming.wait(PATIENCE_S)
    running.process.send_signal(signal.SIGSTOP)
    for _, status, last in before.join():
        assert status == 200
        assert last == "data: [DONE]" or '"finish_reason":"length"' in last
    assert running.http.post("/v1/chat/completions", json=PLAIN).status_code == 200
    family, ports, moment = running.family, running.listening, time.monotonic()
    running.process.kill()
    for ended, _, _ in after.join():
        record("supervisor killed, error", ended - moment)
        assert ended - moment < SLACK_S
    record("supervisor killed, gone", wait_until_gone(family))
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.slow
def test_ranks_fail_and_then_the_supervisor(tmp_path: Path, record_property: Record) -> None:
    given = [
        Fault(1, "flight", "kill", str(tmp_path / "first")),
        Fault(0, "draft", "stop", str(tmp_path / "second"), restarts=1),
    ]
    with started(2, given, tmp_path) as running:
        for fault in given:
            fail(running, fault, record_property)
        end_supervisor(running, "flight", record_property)


@pytest.mark.slow
@pytest.mark.parametrize("at", SERVING)
@pytest.mark.parametrize(("ranks", "rank"), RANKS)
def test_any_rank_fails_in_any_state(
    ranks: int, rank: int, at: str, tmp_path: Path, record_property: Record
) -> None:
    given = [
        Fault(rank, at, how, str(tmp_path / how), restarts) for restarts, how in enumerate(WAYS)
    ]
    with started(ranks, given, tmp_path) as running:
        for fault in given:
            fail(running, fault, record_property)
    assert running.process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("at", STARTING)
@pytest.mark.parametrize(("ranks", "rank"), RANKS)
def test_any_rank_fails_before_it_serves(
    ranks: int, rank: int, at: str, how: str, tmp_path: Path, record_property: Record
) -> None:
    fault = Fault(rank, at, how, str(tmp_path / "moment"))
    with started(ranks, [fault], tmp_path) as running:
        running.wait_for(lambda: fault.moment is not None)
        family = running.family
        serves_again(running, fault, 1, record_property)
        record_property(f"{how} gone", wait_until_gone(family - running.family))
    assert running.process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("state", REQUESTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_supervisor_freezes_and_is_killed(
    ranks: int, state: str, tmp_path: Path, record_property: Record
) -> None:
    with started(ranks, [], tmp_path) as running:
        running.wait_for(lambda: running.announced == 1)
        end_supervisor(running, state, record_property)
