"""`omlx serve MODEL --hosts 127.0.0.1,127.0.0.1`: answers, and what differs or is mistaken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omlx.cli.main import main
from omlx.cli.stage import links as stage_join
from omlx.cli.stage.processes import Host, Hosts
from omlx.cli.stage.supervisor import MAX_STARTS, Supervisor
from omlx.engine.stage.link import Order
from omlx.errors import StageError
from omlx.models.catalog.discovery import BUNDLED
from tests.cli.changed_rank import Fault, faults
from tests.cli.inside import Capture
from tests.cli.staged_group import LOCAL, arguments, changed_ranks, chat, descendants, group
from tests.lanes import few
from tests.server.running import DRAFT, TARGET

OTHERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "weights": ({"environment": {"OMLX_MODEL_DIR": "weights"}}, ("model.safetensors",)),
    "mlx-lm": ({"facts": {"mlx-lm": "0.1.2"}}, ("mlx-lm", "0.1.2", "127.0.0.1")),
    "config": ({"environment": {"OMLX_MODEL_DIR": "config"}}, ("config.json", "127.0.0.1")),
    "missing": ({"environment": {"OMLX_BUNDLED": "off"}}, (TARGET, "omlx pull", "127.0.0.1")),
    "mlx": ({"facts": {"mlx": "0.1.2"}}, ("mlx", "0.1.2")),
    "omlx": ({"facts": {"omlx": "0.0.9"}}, ("omlx", "0.0.9")),
    "device": ({"facts": {"device": "gpu"}}, ("device", "cpu", "gpu")),
    "memory": ({"environment": {"OMLX_MEMORY_LIMIT": "1MiB"}}, ("0.0 GB", "--stage-layers")),
    "model": ({"ask": {"model": DRAFT}}, (TARGET, DRAFT, "127.0.0.1")),
}
"""What is different on a follower, and what the sentence names."""


def test_stages_stream_with_accepted_drafts_and_leave_nothing(tmp_path: Path) -> None:
    with group(tmp_path) as running:
        body = chat(max_tokens=24, seed=1)
        staged = running.http.post("/v1/chat/completions", json=body).json()
        assert staged["timings"]["draft_n_accepted"] > 0
        plain = running.http.post("/v1/chat/completions", json={**body, "speculation": "off"})
        assert plain.json()["choices"] == staged["choices"]
        assert len(running.pids("--lead")) == len(running.pids("stage")) == 1
    assert running.process.returncode == 0


@pytest.mark.slow
def test_followers_of_this_machine_search_where_the_leader_does(tmp_path: Path) -> None:
    shutil.copytree(BUNDLED / TARGET, tmp_path / "elsewhere/org/mine")
    flags = ["--model-dir", str(tmp_path / "elsewhere")]
    with group(tmp_path, *flags, model="org/mine") as running:
        answer = running.http.post("/v1/chat/completions", json=chat(max_tokens=4))
        assert answer.status_code == 200


def changed_copy(folder: Path, name: str) -> None:
    """A copy of the model below `folder`, with one byte of its weights or its config changed."""
    copy = folder / TARGET
    shutil.copytree(BUNDLED / TARGET, copy)
    if name == "config":
        config = json.loads((copy / "config.json").read_text())
        quantization = {"group_size": 64, "bits": 4}
        (copy / "config.json").write_text(json.dumps({**config, "quantization": quantization}))
        return
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (copy / "model.safetensors").write_bytes(weights)


def refusal(home: Path, changes: dict[str, Any], *flags: str, **options: Any) -> list[str]:
    """Start a group that is refused before weights are read; return what it says."""
    reads = [Fault(rank, "loading", "exit", str(home / f"read-{rank}")) for rank in (0, 1)]
    environment = changed_ranks({**changes, **faults(*reads)})
    with group(home, *flags, environment=environment, **options) as running:
        running.wait_for(lambda: running.process.poll() is not None)
    assert running.process.returncode == 2, running.lines
    assert [read.moment for read in reads] == [None, None]
    return [line for line in running.lines if line.startswith("omlx: ")]


@pytest.mark.slow
@pytest.mark.parametrize("name", few(OTHERS, "weights"))
def test_what_differs_on_a_follower_is_named(name: str, tmp_path: Path) -> None:
    changes, parts = OTHERS[name]
    folder = changes.get("environment", {}).get("OMLX_MODEL_DIR")
    if folder is not None:
        changed_copy(tmp_path / folder, name)
        changes = {"environment": {"OMLX_MODEL_DIR": str(tmp_path / folder)}}
    lines = refusal(tmp_path, changes)
    assert len(lines) == 1
    assert all(part in lines[0] for part in parts), lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "flags", "part"),
    [
        ("omlx-demo/hybrid", (), "lfm2"),
        ("org/none", (), "org/none"),
        (TARGET, ("--stage-layers", "9,9"), "9,9"),
        (TARGET, ("--stage-layers", "8,0"), "8,0"),
    ],
)
def test_what_cannot_be_split_is_refused(
    model: str, flags: tuple[str, ...], part: str, tmp_path: Path
) -> None:
    lines = refusal(tmp_path, {}, *flags, model=model)
    assert len(lines) == 1
    assert part in lines[0]


@pytest.mark.slow
def test_strangers_and_a_second_follower_are_refused(tmp_path: Path) -> None:
    report = tmp_path / "report"
    environment = changed_ranks({"attack": str(report)})
    with group(tmp_path, hosts=f"{LOCAL},127.0.0.1", environment=environment) as running:
        answer = running.http.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 200
        assert "omlx_stage_restarts_total 0.0" in running.http.get("/metrics").text, "".join(
            running.lines
        )
        ports = running.listening
        assert json.loads(report.read_text()) == ["stage.secret", "stage.rank"]
        assert ports == {int(str(running.url).rpartition(":")[2])}  # none of a link or the ring


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--hosts", "127.0.0.1"), "two hosts"),
        (("--hosts", ""), "--hosts"),
        (("--hosts", "nowhere.json"), "nowhere.json"),
        (("--hosts", "127.0.0.1,0.0.0.0"), "0.0.0.0"),
        (("--hosts", "::1,::1"), "::1"),
        (("--hosts", "203.0.113.1,203.0.113.2"), "203.0.113.1"),
        (("--hosts", LOCAL, "--split", "tensor", "--stage-layers", "2,2"), "tensor"),
        (("--split", "pipeline"), "--split"),
        (("--stage-timeout", "3"), "--stage-timeout"),
        (("--stage-layers", "4,4"), "--stage-layers"),
        (("--hosts", LOCAL, "--stage-layers", "a,b"), "a,b"),
        (("--hosts", LOCAL, "--stage-timeout", "nan"), "nan"),
        (("--hosts", LOCAL, "--stage-timeout", "0"), "3600"),
    ],
)
def test_mistakes_end_before_anything_starts(
    flags: tuple[str, ...], part: str, alone: Path, capsys: Capture
) -> None:
    try:
        status = main(["serve", TARGET, "--port", "0", *flags])
    except SystemExit as ended:  # from argparse
        status = int(str(ended.code))
    assert status == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert part in line


def test_the_launcher_of_mlx_is_refused(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("MLX_RANK", "0")
    assert main(["serve", TARGET, "--port", "0"]) == 2
    assert "--hosts" in capsys.readouterr().err


def test_hosts_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_join, "JOIN_S", 0.1)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    order = Order(("mac1", "mac2", "mac3"), "00", 0, address, links=listener.detach())
    with pytest.raises(StageError) as refusal:
        stage_join.lead(order, lambda failure: None, lambda: 0)
    assert refusal.value.code == "stage.unreachable"
    assert refusal.value.params["hosts"] == "mac2, mac3"


class Unreachable(Hosts):
    """Followers that ssh does not reach."""

    def follower(self, rank: int, *arguments: str, **search: Iterable[str]) -> list[str]:
        return ["sh", "-c", "exit 255"]


class WithoutSsh(Hosts):
    def follower(self, rank: int, *arguments: str, **search: Iterable[str]) -> list[str]:
        return ["/nowhere/ssh"]


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals as they were."""
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("kind", [Unreachable, WithoutSsh])
def test_a_host_that_ssh_does_not_reach_is_named(kind: type[Hosts], alone: Path) -> None:
    hosts = kind([Host("mac1", ["127.0.0.1"]), Host("mac2", ["127.0.0.1"])])
    order = Order(("mac1", "mac2"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        supervisor = Supervisor(hosts, order, [TARGET], TARGET, listening)
        with pytest.raises(StageError) as refusal:
            supervisor.run()
    assert refusal.value.code == "stage.not_started"
    assert refusal.value.params["host"] == "mac2"
    assert not any(b"--lead" in arguments(pid) for pid in descendants(os.getpid()))


class Dying(Hosts):
    """Followers that end before they join."""

    def follower(self, rank: int, *arguments: str, **search: Iterable[str]) -> list[str]:
        return ["sh", "-c", "exit 75"]


class Hurried(Supervisor):
    """Waits for nothing between two starts; bounded, for a supervisor that would not give up."""

    def _sleep(self, seconds: float) -> None:
        self._stopping = self.order.restarts == 2 * MAX_STARTS


@pytest.mark.usefixtures("handlers")
def test_a_group_that_never_serves_is_given_up(alone: Path, capsys: Capture) -> None:
    hosts = Dying([Host("mac1", ["127.0.0.1"]), Host("mac2", ["127.0.0.1"])])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        supervisor = Hurried(hosts, Order(("mac1", "mac2")), [TARGET], TARGET, listening)
        with pytest.raises(StageError) as refusal:
            supervisor.run()
    assert refusal.value.code == "stage.gave_up"
    assert refusal.value.params == {"starts": MAX_STARTS}
    assert capsys.readouterr().err.count("rank 1 on mac2 has ended") == MAX_STARTS


class OncePatient(Supervisor):
    """Has served, and is stopped while it waits to start the group again."""

    def _sleep(self, seconds: float) -> None:
        self._stopping = True


@pytest.mark.usefixtures("handlers")
def test_after_it_has_served_a_host_is_waited_for(alone: Path, capsys: Capture) -> None:
    hosts = WithoutSsh([Host("mac1", ["127.0.0.1"]), Host("mac2", ["127.0.0.1"])])
    order = Order(("mac1", "mac2"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        supervisor = OncePatient(hosts, order, [TARGET], TARGET, listening)
        supervisor.served_once = True
        assert supervisor.run() == 0
    assert "mac2" in capsys.readouterr().err
