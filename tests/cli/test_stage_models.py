"""A model in stages beside others: loaded again, measured, with costs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.staged_group import PATIENCE_S, QUESTION, Group, group
from tests.server.running import TARGET
from tests.storage import homes

LOCAL_MODEL = "omlx-demo/hybrid"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Group]:
    calibrating = {"OMLX_CALIBRATE": "on"}
    with group(home, "--stage-layers", "5,3", environment=calibrating) as started:
        yield started


def answer(running: Group, model: str = TARGET) -> str:
    body = {"model": model, "messages": [QUESTION], "max_tokens": 40, "seed": 5}
    response = running.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def status(running: Group, model: str = TARGET) -> dict[str, Any]:
    record: dict[str, Any] = running.http.get(f"/v1/models/{model}").json()
    return record


def states(running: Group) -> list[str]:
    return [stage["state"] for stage in status(running)["stages"]]


def unload(running: Group, model: str) -> httpx.Response:
    return running.http.post(f"/v1/models/{model}/unload")


@pytest.mark.slow
def test_it_is_calibrated_while_idle_over_all_stages(running: Group) -> None:
    answer(running)

    def ended() -> bool:
        return bool(status(running)["speculation"]["calibration"] != "pending")

    # Each question interrupts it; it continues after a quarter of a second without one.
    running.wait_for(ended, pause=2.0)
    speculation = status(running)["speculation"]
    assert speculation["calibration"] == "done"
    assert speculation["costs"]["target"]
    assert answer(running) == answer(running)


def test_it_takes_turns_with_a_model_of_the_leader_alone(running: Group) -> None:
    before = answer(running)
    local = answer(running, LOCAL_MODEL)
    assert status(running, LOCAL_MODEL)["stages"] == []
    assert [stage["layers"] for stage in status(running)["stages"]] == [[3, 8], [0, 3]]
    assert answer(running) == before
    assert answer(running, LOCAL_MODEL) == local
    assert unload(running, LOCAL_MODEL).status_code == 200
    assert answer(running) == before


def test_it_is_unloaded_and_loaded_again_by_the_same_processes(running: Group) -> None:
    before, processes = answer(running), running.pids("stage")
    assert unload(running, TARGET).status_code == 200
    assert status(running)["state"] == "unloaded"
    assert status(running)["stages"] == []
    for _ in range(2):
        assert answer(running) == before
        running.wait_for(lambda: states(running) == ["ready", "ready"])  # silent: a late beat
        assert unload(running, TARGET).status_code == 200
    assert running.pids("stage") == processes


def test_its_costs_are_those_of_so_many_ranks_over_this_backend_in_this_split(
    running: Group, home: Path
) -> None:
    answer(running)
    assert unload(running, TARGET).status_code == 200
    keys = [costs["key"] for costs in homes.measured(home, "costs").values()]
    keys = [key["machine"] for key in keys if key["model"] == TARGET]
    assert keys
    assert all(key.endswith(" 5,3 of 2 by ring") for key in keys)


@pytest.mark.slow
def test_heads_that_the_machines_cannot_share_end_the_command(tmp_path: Path) -> None:
    hosts = ",".join(["127.0.0.1"] * 3)
    command = [sys.executable, "-m", "omlx", "serve", TARGET, "--port", "0", "--hosts", hosts]
    ended = subprocess.run(
        [*command, "--split", "tensor"],
        env={**os.environ, "OMLX_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "4 attention heads, which 3 machines" in ended.stderr
