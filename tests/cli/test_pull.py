"""`omlx pull` against a hub on the loopback: complete, continued and rejected downloads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import httpx
import pytest

from omlx.models.catalog.discovery import BUNDLED, discover
from omlx.models.catalog.package import FILE
from omlx.settings.schema import Settings
from tests.cli.inside import omlx
from tests.models.hub import Hub, running
from tests.processes import environment

DEMO = BUNDLED / "omlx-demo"
TOKENIZER = "tokenizer.json"
CHUNK = 10 << 20  # what the library writes at a time


def package(draft: str, **more: object) -> dict[str, bytes]:
    strategy = {"type": "draft-model", "draft_model": draft, **more}
    block = {"default": "small", "strategies": {"small": strategy}}
    return {FILE: json.dumps({"generation": {"speculative_decoding": block}}).encode()}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        yield hub


def pull(
    hub: Hub, home: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return omlx(
        home, "pull", *arguments, "--no-bundled", **hub.environment(home / "hub"), **variables
    )


def usable(hub: Hub, home: Path) -> set[str]:
    """Return the ids of the usable models, as a process with this home finds them."""
    settings = Settings(home=home / ".omlx", bundled=False, lmstudio=False)
    return {entry.id for entry in discover(settings, hub.environment(home / "hub")).usable}


def test_a_model_comes_with_its_declared_draft_and_only_what_is_of_use(
    hub: Hub, tmp_path: Path
) -> None:
    pooling = {
        "modules.json": b"[]",
        "1_Pooling/config.json": b"{}",
        "1_LogitScore/config.json": b"{}",
    }
    useless = {"pytorch_model.bin": b"x", "weights.gguf": b"x", "onnx/config.json": b"{}"}
    hub.add("org/big", DEMO / "target", {**package("org/small"), **pooling, **useless})
    hub.add("org/small", DEMO / "draft")
    result = pull(hub, tmp_path, "org/big")
    assert result.returncode == 0, result.stderr
    assert usable(hub, tmp_path) == {"org/big", "org/small"}
    fetched = {name for _, name, _ in hub.seen}
    assert (fetched & useless.keys(), fetched & pooling.keys()) == (set(), pooling.keys())
    before = len(hub.seen)
    assert pull(hub, tmp_path, "org/big").returncode == 0
    assert [method for method, *_ in hub.seen[before:] if method == "GET"] == []


def test_a_download_that_was_killed_is_continued(hub: Hub, tmp_path: Path) -> None:
    weights = bytes(range(256)) * (CHUNK // 128)
    hub.add("org/big", DEMO / "target", {"model.safetensors": weights})
    hub.stall["model.safetensors"] = CHUNK + (CHUNK >> 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "omlx", "pull", "org/big", "--no-draft"],
        env=environment(tmp_path, **hub.environment(tmp_path / "hub")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert hub.stalled.wait(120)
    while not any(
        part.stat().st_size >= CHUNK for part in tmp_path.glob("hub/*/blobs/*.incomplete")
    ):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.kill()
    process.wait()
    assert usable(hub, tmp_path) == set()
    before = len(hub.seen)
    assert pull(hub, tmp_path, "org/big").returncode == 0
    asked = [
        start
        for method, name, start in hub.seen[before:]
        if (method, name) == ("GET", "model.safetensors")
    ]
    assert asked == [CHUNK]
    (snapshot,) = tmp_path.glob("hub/*/snapshots/*")
    assert (snapshot / "model.safetensors").read_bytes() == weights


def test_a_model_is_not_in_sight_before_all_of_it_is_here(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/small", DEMO / "draft")
    hub.stall[TOKENIZER] = 1000
    process = subprocess.Popen(
        [sys.executable, "-m", "omlx", "pull", "org/small"],
        env=environment(tmp_path, **hub.environment(tmp_path / "hub")),
        stdout=subprocess.DEVNULL,
    )
    assert hub.stalled.wait(120)
    while not list(tmp_path.glob("hub/*/snapshots/*/model.safetensors")):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    meanwhile = usable(hub, tmp_path)
    hub.released.set()
    assert process.wait(120) == 0
    assert (meanwhile, usable(hub, tmp_path)) == (set(), {"org/small"})


def test_a_corrupted_update_leaves_what_was_here(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/big", DEMO / "draft")
    assert pull(hub, tmp_path, "org/big").returncode == 0
    hub.add("org/big", DEMO / "draft", {"config.json": b"{}"})
    hub.commit = "1" * 40
    hub.corrupt |= {"config.json"}
    assert pull(hub, tmp_path, "org/big").returncode == 2
    assert usable(hub, tmp_path) == {"org/big"}


def test_a_corrupted_download_is_thrown_away_and_can_be_repeated(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/big", DEMO / "draft")
    hub.corrupt |= {"model.safetensors"}
    result = pull(hub, tmp_path, "org/big")
    assert result.returncode == 2
    assert "model.safetensors does not match the hub's checksum" in result.stderr
    assert usable(hub, tmp_path) == set()
    hub.corrupt.clear()
    assert pull(hub, tmp_path, "org/big").returncode == 0
    assert usable(hub, tmp_path) == {"org/big"}


@pytest.mark.parametrize(
    ("broken", "here"),
    [
        pytest.param("model.safetensors", 0, marks=pytest.mark.slow),
        ("model.safetensors", 1000),
        pytest.param(TOKENIZER, 0, marks=pytest.mark.slow),
    ],
)
def test_a_declared_draft_that_did_not_arrive_is_fetched_with_its_model(
    hub: Hub, tmp_path: Path, broken: str, here: int
) -> None:
    hub.add("org/big", DEMO / "target", package("org/small"))
    hub.add("org/small", DEMO / "draft")
    hub.corrupt |= {broken}
    assert pull(hub, tmp_path, "org/small").returncode == 2
    hub.corrupt.clear()
    file = hub.repositories["org/small"][broken]
    if here:
        part = tmp_path / f"hub/models--org--small/blobs/{file.etag}.incomplete"
        part.write_bytes(file.content[:here])
    result = pull(hub, tmp_path, "org/big")
    assert (result.returncode, result.stderr) == (0, "")
    assert usable(hub, tmp_path) == {"org/big", "org/small"}
    assert [start for method, name, start in hub.seen if (method, name) == ("GET", broken)][
        -1
    ] == here


@pytest.mark.slow
def test_files_that_a_person_wrote_stay_as_they_are(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/big", DEMO / "target", package("org/theirs-GGUF"))
    hub.add("org/small", DEMO / "draft")
    assert pull(hub, tmp_path, "org/big", "--no-draft").returncode == 0
    assert pull(hub, tmp_path, "org/small").returncode == 0
    variables = hub.environment(tmp_path / "hub")
    written = omlx(tmp_path, "package", "write", "org/big", "--draft", "org/small", **variables)
    assert written.returncode == 0, written.stderr
    (snapshot,) = tmp_path.glob("hub/models--org--big/snapshots/*")
    elsewhere = tmp_path / "tokenizer_config.json"
    elsewhere.write_text("{}")
    (snapshot / elsewhere.name).unlink()
    (snapshot / elsewhere.name).symlink_to(elsewhere)
    before = (snapshot / FILE).read_text()
    for _ in range(2):
        result = pull(hub, tmp_path, "org/big")
        assert result.returncode == 0, result.stderr
        assert {line.split()[1] for line in result.stderr.splitlines()} == {
            str(snapshot / FILE),
            str(snapshot / elsewhere.name),
        }
        assert ((snapshot / FILE).read_text(), elsewhere.read_text()) == (before, "{}")
    (snapshot / FILE).unlink()
    assert "GGUF" in pull(hub, tmp_path, "org/big").stderr


@pytest.mark.slow
def test_a_package_that_a_person_wrote_goes_along_to_the_hubs_newer_commit(
    hub: Hub, tmp_path: Path
) -> None:
    hub.add("org/big", DEMO / "target", package("org/theirs-GGUF"))
    hub.add("org/small", DEMO / "draft")
    for name in ("org/big", "org/small"):
        assert pull(hub, tmp_path, name, "--no-draft").returncode == 0
    variables = hub.environment(tmp_path / "hub")
    assert (
        omlx(
            tmp_path, "package", "write", "org/big", "--draft", "org/small", **variables
        ).returncode
        == 0
    )
    snapshots = tmp_path / "hub/models--org--big/snapshots"
    mine = (snapshots / hub.commit / FILE).read_text()
    for hub.commit in ("1" * 40, "2" * 40):
        result = pull(hub, tmp_path, "org/big", "--no-draft")
        assert result.returncode == 0, result.stderr
        assert f"{snapshots / hub.commit / FILE} was written locally" in result.stderr
        assert (snapshots / hub.commit / FILE).read_text() == mine
        assert (
            "copied to the new revision" not in pull(hub, tmp_path, "org/big", "--no-draft").stderr
        )
    (snapshots / hub.commit / FILE).unlink()  # to get the version of the hub instead
    assert "GGUF" in pull(hub, tmp_path, "org/big").stderr
    hub.commit = "3" * 40
    assert "copied to the new revision" not in pull(hub, tmp_path, "org/big").stderr
    assert (snapshots / hub.commit / FILE).is_symlink()


def test_weights_that_are_gone_are_fetched_again_with_their_model(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/big", DEMO / "target", package("org/small"))
    hub.add("org/small", DEMO / "draft")
    assert pull(hub, tmp_path, "org/big").returncode == 0
    for weights in tmp_path.glob("hub/*/snapshots/*/model.safetensors"):
        weights.resolve().unlink()
    assert usable(hub, tmp_path) == set()
    result = pull(hub, tmp_path, "org/big")
    assert (result.returncode, result.stderr) == (0, "")
    assert usable(hub, tmp_path) == {"org/big", "org/small"}


def test_a_draft_that_is_broken_is_said_and_the_model_is_here(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/big", DEMO / "target", package("mine"))
    mine = Path(shutil.copytree(DEMO / "draft", tmp_path / ".omlx/models/mine"))
    (mine / TOKENIZER).write_text("{")
    result = pull(hub, tmp_path, "org/big")
    assert result.returncode == 0, result.stderr
    assert "mine cannot be loaded" in result.stderr


def test_a_draft_that_cannot_be_used_is_said_and_the_model_is_here(
    hub: Hub, tmp_path: Path
) -> None:
    hub.add("org/big", DEMO / "target", package("org/small-GGUF:Q4_K_M"))
    result = pull(hub, tmp_path, "org/big")
    assert result.returncode == 0
    assert "GGUF" in result.stderr
    assert usable(hub, tmp_path) == {"org/big"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["org/none"], "no repository org/none"),
        (["org/big@other"], "no revision 'other'"),
        (["org/gguf"], "only GGUF files"),
        (["../etc"], "is not a model name"),
        (["org/my model"], "is not a model name"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_one_line(
    hub: Hub, tmp_path: Path, arguments: list[str], said: str
) -> None:
    hub.add("org/big", DEMO / "draft")
    hub.repositories["org/gguf"] = {
        "weights.gguf": hub.repositories["org/big"]["model.safetensors"]
    }
    result = pull(hub, tmp_path, *arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_only_what_is_still_to_come_needs_room(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/big", DEMO / "target", package("org/small"))
    hub.add("org/small", DEMO / "draft")
    big = hub.repositories["org/big"]["model.safetensors"]
    spare, room = 1 << 30, 4 << 20  # less than the model, more than the draft

    def code(free: int) -> int:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        result = pull(hub, tmp_path, "org/big")
        assert ("Not enough disk space" in result.stderr) is (result.returncode == 2)
        return result.returncode

    assert code(spare + room) == 2
    assert not list(tmp_path.glob("hub/models--*"))
    part = tmp_path / f"hub/models--org--big/blobs/{big.etag}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(big.content[: -(1 << 20)])
    assert code(spare + room) == 0
    assert usable(hub, tmp_path) == {"org/big", "org/small"}
    assert code(0) == 0
    shutil.rmtree(tmp_path / "hub/models--org--small")
    assert code(spare + 1000) == 2
    assert code(spare + room) == 0


def test_offline_is_offline(hub: Hub, tmp_path: Path) -> None:
    variables = {**hub.environment(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    result = omlx(tmp_path, "pull", "org/big", **variables)
    assert (result.returncode, "HF_HUB_OFFLINE" in result.stderr) == (2, True)
    assert hub.seen == []


@pytest.mark.slow
def test_a_server_fetches_a_declared_draft_and_uses_it(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/big", DEMO / "target", package("org/small"))
    hub.add("org/small", DEMO / "draft")
    assert pull(hub, tmp_path, "org/big", "--no-draft").returncode == 0
    hub.stall["model.safetensors"] = 1000
    with fetching(hub, tmp_path) as (announced, log):
        assert announced[1:] == [
            "Model: org/big",
            "The draft model org/small is not on this machine.",
        ]
        assert hub.stalled.wait(120)
        hub.released.set()
        loaded = next(line for line in log if "org/small" in line)
        assert "loaded" in loaded


@pytest.mark.slow
def test_a_server_that_asks_says_what_to_fetch_and_uses_it_once_downloaded(
    hub: Hub, tmp_path: Path
) -> None:
    hub.add("org/big", DEMO / "target", package("org/small", size_bytes=3_500_000))
    hub.add("org/small", DEMO / "draft")
    assert pull(hub, tmp_path, "org/big", "--no-draft").returncode == 0
    with fetching(hub, tmp_path, "ask", lines=4) as (announced, log):
        assert announced[2:] == [
            "The draft model org/small is not on this machine.",
            "To download org/small (3.5 MB): omlx pull org/small",
        ]
        status = f"{announced[0].split()[-1]}/v1/models/org/big"
        wanted = httpx.get(status).json()["speculation"]["wanted"]
        assert (wanted["repository"], wanted["size_bytes"], wanted["fetching"]) == (
            "org/small",
            3_500_000,
            False,
        )
        assert pull(hub, tmp_path, "org/small").returncode == 0
        assert "loaded" in next(line for line in log if "org/small" in line)
        until = time.monotonic() + 60
        while (reply := httpx.get(status).json()["speculation"])["draft"] is None:
            assert time.monotonic() < until, reply
            time.sleep(0.05)  # it is logged before it is in use
        assert (reply["draft"], reply["wanted"], reply["reason"]) == ("org/small", None, None)


@pytest.mark.slow
def test_a_server_that_fetches_a_corrupted_draft_serves_without_it_and_says_why(
    hub: Hub, tmp_path: Path
) -> None:
    hub.add("org/big", DEMO / "target", package("org/small"))
    hub.add("org/small", DEMO / "draft")
    assert pull(hub, tmp_path, "org/big", "--no-draft").returncode == 0
    hub.corrupt |= {"model.safetensors"}
    with fetching(hub, tmp_path) as (announced, log):
        assert "draft not fetched" in next(line for line in log if "org/small" in line)
        reply = httpx.get(f"{announced[0].split()[-1]}/v1/models/org/big").json()["speculation"]
    assert (reply["draft"], reply["reason"]["code"]) == (None, "draft.not_here")
    assert reply["wanted"]["failed"]["code"] == "pull.corrupt"
    assert (
        "model.safetensors does not match the hub's checksum"
        in reply["wanted"]["failed"]["message"]
    )
    hub.corrupt.clear()
    with fetching(hub, tmp_path) as (announced, log):
        assert announced[2] == "The download of org/small is incomplete."
        assert "loaded" in next(line for line in log if "org/small" in line)


@contextmanager
def fetching(
    hub: Hub, home: Path, choice: str = "auto", lines: int = 3
) -> Iterator[tuple[list[str], IO[str]]]:
    """Run a server of org/big; yield its first lines, and its log.

    `choice`: whether it downloads declared drafts.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "omlx",
            "serve",
            "org/big",
            "--port",
            "0",
            "--draft-download",
            choice,
        ],
        env=environment(home, **hub.environment(home / "hub")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        yield [process.stdout.readline().strip() for _ in range(lines)], process.stderr
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0
