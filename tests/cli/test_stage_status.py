"""A model in stages: status, metrics, dashboard, refusals; beside others, loaded again; hosts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.catalog import sentence
from omlx.cli.stage.processes import Host, Hosts, read_hosts
from omlx.engine.stage.stages import StageStatus
from omlx.errors import ConfigError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.pool.served import ModelStatus, State
from tests import lanes
from tests.cli.changed_rank import Fault, faults
from tests.cli.inside import omlx
from tests.cli.staged_group import PATIENCE_S, QUESTION, Group, changed_ranks, group
from tests.server.running import TARGET
from tests.storage import homes

MODEL, LOCAL_MODEL = "org/embedding", "omlx-demo/hybrid"
MODULES = [
    {"type": "sentence_transformers.models.Transformer"},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]
"""A model that declares how its hidden states are pooled."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Group]:
    model = home / "models" / MODEL
    shutil.copytree(BUNDLED / TARGET, model)
    (model / "modules.json").write_text(json.dumps(MODULES))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vision_config": {}}))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    fault = Fault(1, "loading", "kill", str(home / "moment"))
    # All is started again once.
    environment = {**changed_ranks(faults(fault)), "OMLX_CALIBRATE": "on" if lanes.slow else "off"}
    with group(home, "--stage-layers", "6,2", model=MODEL, environment=environment) as started:
        started.wait_for(started.healthy)  # any test may be the first one here
        yield started


@pytest.fixture(scope="module")
def dashboard(running: Group, home: Path) -> Iterator[httpx.Client]:
    """A logged-in browser."""
    link = httpx.URL(omlx(home, "dashboard", "--print", OMLX_HOME=str(home)).stdout.strip())
    with httpx.Client(base_url=running.http.base_url, follow_redirects=True) as http:
        form = {"token": link.params["token"], "next": "/admin"}
        http.post("/admin/login", data=form, headers={"Origin": str(running.http.base_url)})
        yield http


def status(running: Group, model: str = MODEL) -> dict[str, Any]:
    record: dict[str, Any] = running.http.get(f"/v1/models/{model}").json()
    return record


def stages(running: Group) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = status(running)["stages"]
    return told


@pytest.mark.slow
def test_a_status_lists_every_stage(running: Group) -> None:
    running.wait_for(lambda: stages(running)[1]["rtt_ms"] is not None)
    leader, follower = stages(running)
    assert [leader["rank"], follower["rank"]] == [0, 1]
    assert [leader["layers"], follower["layers"]] == [[2, 8], [0, 2]]
    assert leader["host"] == follower["host"] == "127.0.0.1"
    assert leader["state"] == "ready"
    running.wait_for(lambda: stages(running)[1]["state"] == "ready")  # silent: a late beat
    assert leader["restarts"] == follower["restarts"] == 1
    assert leader["rtt_ms"] is leader["beat_age_s"] is None
    for figure in ("weights_bytes", "free_bytes", "rtt_ms"):
        assert float(str(follower[figure])) > 0
    assert float(str(leader["weights_bytes"])) > float(str(follower["weights_bytes"]))


def test_machines_are_counted_by_their_hosts() -> None:
    for hosts, machines in (
        (["127.0.0.1", "127.0.0.1"], 1),
        (["127.0.0.1", "localhost", "127.0.0.2"], 1),
        (["a.local", "b.local"], 2),
        (["10.0.0.1", "10.0.0.2", "10.0.0.1"], 2),
        ([], 0),
    ):
        parts = tuple(StageStatus(rank, host) for rank, host in enumerate(hosts))
        assert ModelStatus(State.READY, stages=parts).machines == machines


def test_metrics_have_round_trips_and_restarts(running: Group) -> None:
    running.wait_for(lambda: stages(running)[1]["rtt_ms"] is not None)
    lines = running.http.get("/metrics").text.splitlines()
    (trip,) = (line for line in lines if line.startswith("omlx_stage_rtt_seconds{"))
    name, seconds = trip.split()
    assert name == 'omlx_stage_rtt_seconds{rank="1"}'
    assert 0 < float(seconds) < 60
    assert "omlx_stage_restarts_total 1.0" in lines


def test_embeddings_are_refused(running: Group) -> None:
    answer = running.http.post("/v1/embeddings", json={"model": MODEL, "input": "a cat"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "embedding.staged"
    body = {"messages": [QUESTION], "max_tokens": 4}
    assert running.http.post("/v1/chat/completions", json=body).status_code == 200


def test_images_are_refused(running: Group) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 4}
    answer = running.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "image.model"
    assert sentence("vision.off.staged", {}) in error["message"]


@pytest.mark.parametrize(
    ("language", "overview", "line", "restarts"),
    [
        ("en", "2 processes on this machine", "layers 3 to 8", "restarts: 1"),
        ("ko", "이 컴퓨터의 프로세스 2개", "레이어 3~8", "다시 시작한 횟수: 1"),
        ("ja", "このマシンの2プロセス", "レイヤー3～8", "再起動回数: 1"),
        ("zh", "本机的 2 个进程", "第 3 至 8 层", "重启次数：1"),
    ],
)
def test_the_dashboard_shows_stages(
    language: str, overview: str, line: str, restarts: str, dashboard: httpx.Client
) -> None:
    headers = {"Accept-Language": language}
    assert overview in dashboard.get("/admin/parts/overview", headers=headers).text
    page = dashboard.get(f"/admin/parts/model/{MODEL}", headers=headers).text
    assert line in page
    assert page.count(restarts) == 1
    assert page.count('id="stage-') == 2


def answer(running: Group, model: str = MODEL) -> str:
    body = {"model": model, "messages": [QUESTION], "max_tokens": 40, "seed": 5}
    response = running.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def states(running: Group) -> list[str]:
    return [stage["state"] for stage in stages(running)]


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
    assert [stage["layers"] for stage in stages(running)] == [[2, 8], [0, 2]]
    assert answer(running) == before
    assert answer(running, LOCAL_MODEL) == local
    assert unload(running, LOCAL_MODEL).status_code == 200
    assert answer(running) == before


def test_it_is_unloaded_and_loaded_again_by_the_same_processes(running: Group) -> None:
    before, processes = answer(running), running.pids("stage")
    assert unload(running, MODEL).status_code == 200
    assert status(running)["state"] == "unloaded"
    assert stages(running) == []
    for _ in range(2):
        assert answer(running) == before
        running.wait_for(lambda: states(running) == ["ready", "ready"])  # silent: a late beat
        assert unload(running, MODEL).status_code == 200
    assert running.pids("stage") == processes


def test_its_costs_are_those_of_so_many_ranks_over_this_backend_in_this_split(
    running: Group, home: Path
) -> None:
    answer(running)
    assert unload(running, MODEL).status_code == 200
    keys = [costs["key"] for costs in homes.measured(home, "costs").values()]
    keys = [key["machine"] for key in keys if key["model"] == MODEL]
    assert keys
    assert all(key.endswith(" 6,2 of 2 by ring") for key in keys)


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


MACS = {
    "backend": "jaccl",
    "envs": ["MLX_METAL_FAST_SYNCH=1"],
    "hosts": [
        {"ssh": "mac1", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en2"]},
        {"ssh": "mac2", "ips": ["10.0.0.2"], "rdma": ["rdma_en2", None]},
    ],
}


def written(folder: Path, content: object) -> str:
    path = folder / "macs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_list_of_addresses() -> None:
    hosts = read_hosts("127.0.0.1, 127.0.0.1")
    assert hosts == Hosts([Host("127.0.0.1", ["127.0.0.1"])] * 2)
    assert all(host.local for host in hosts.hosts)


def test_a_hostfile_of_mlx(tmp_path: Path) -> None:
    hosts = read_hosts(written(tmp_path, MACS))
    assert (hosts.backend, hosts.envs) == ("jaccl", ["MLX_METAL_FAST_SYNCH=1"])
    assert hosts.hosts[1] == Host("mac2", ["10.0.0.2"], ["rdma_en2", None])
    assert not hosts.hosts[0].local


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "not JSON"),
        ({"backend": "ring"}, "hosts"),
        ("3", "macs.json"),
        ({"hosts": [{"ips": ["10.0.0.1"]}]}, "hosts.0.ssh: Field required"),
        ({"hosts": [{"ssh": "", "ips": ["10.0.0.1"]}]}, "hosts.0.ssh"),
        ({"hosts": [{"ssh": "a", "ips": "10.0.0.1"}]}, "hosts.0.ips: Input should be a valid list"),
        ({**MACS, "backend": "mpi"}, "backend: Input should be 'ring' or 'jaccl'"),
        ({**MACS, "envs": {"A": "1"}}, "envs: Input should be a valid list"),
        ({**MACS, "envs": ["A"]}, "envs.0"),
        ({**MACS, "hosts": MACS["hosts"][:1]}, "two hosts"),
        ([{"ssh": "a", "ips": ["0.0.0.0"]}, {"ssh": "b", "ips": ["10.0.0.2"]}], "0.0.0.0"),
        ([{"ssh": "a", "ips": ["127.0.0.1"]}, {"ssh": "b", "ips": ["10.0.0.2"]}], "loopback"),
    ],
)
def test_mistakes_are_named(content: object, part: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_hosts(written(tmp_path, content))
    assert part in refusal.value.message


def test_what_is_empty_has_its_default(tmp_path: Path) -> None:
    content = {**MACS, "backend": "", "envs": None}
    assert read_hosts(written(tmp_path, content)).backend == "ring"


def test_a_missing_hostfile_is_named() -> None:
    with pytest.raises(ConfigError) as refusal:
        read_hosts("nowhere/macs.json")
    assert "nowhere/macs.json" in refusal.value.message
