"""Downloads of a server, in real processes, from a hub on the loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.errors import Conflict, ModelError, NotFound
from omlx.models.catalog.discovery import BUNDLED, HubCache
from omlx.models.catalog.reference import Reference
from omlx.models.hub.downloads import Download, Downloads, State
from omlx.models.hub.job import Job
from tests.models.hub import Hub, running
from tests.refusals import refused

DEMO = BUNDLED / "omlx-demo"
SMALL, REFERENCE = "org/small", Reference("org/small")
WEIGHTS = "model.safetensors"
CHUNK = 10 << 20  # what the library writes at a time
PATIENCE_S = 120


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add(SMALL, DEMO / "draft")
        yield hub


def downloads(hub: Hub, home: Path, **more: str) -> Downloads:
    """Downloads as a server has them that has just been started in this home."""
    return Downloads(home / ".omlx", environment(hub, home, **more))


def environment(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **hub.environment(home / "hub"), **more}


async def listed(downloads: Downloads) -> Download:
    (download,) = await downloads.all()
    return download


async def until(downloads: Downloads, state: State, nbytes: int = 0) -> Download:
    """Wait until the only download is in this state, with so many bytes."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            download = await listed(downloads)
            if download.state is state and download.done_bytes >= nbytes:
                return download
            await asyncio.sleep(0.05)  # there is no event for what another process writes


async def test_a_download_arrives_complete_and_leaves_no_record(hub: Hub, tmp_path: Path) -> None:
    server = downloads(hub, tmp_path)
    server.start(REFERENCE)
    server.start(REFERENCE)  # such as from a second window
    assert (await listed(server)).state in (State.WAITING, State.RUNNING)
    done = await until(server, State.DONE)
    assert (done.model, done.failure) == (SMALL, None)
    assert await downloads(hub, tmp_path).all() == []
    assert [name for method, name, _ in hub.seen if method == "GET"].count(WEIGHTS) == 1
    assert dict(HubCache("hf-cache", tmp_path / "hub").models()).keys() == {SMALL}


async def test_a_model_is_listed_before_its_download_is_done(hub: Hub, tmp_path: Path) -> None:
    server, states = downloads(hub, tmp_path), []

    async def check() -> None:
        assert (tmp_path / "hub" / "models--org--small" / "snapshots").is_dir()
        states.append((await listed(server)).state)

    server.on_arrival = check
    server.start(REFERENCE)
    await until(server, State.DONE)
    assert states == [State.RUNNING]


async def test_a_paused_download_is_continued_by_the_next_server(hub: Hub, tmp_path: Path) -> None:
    weights = bytes(range(256)) * (CHUNK // 128)
    hub.add(SMALL, DEMO / "draft", {WEIGHTS: weights})
    hub.stall[WEIGHTS] = CHUNK + (CHUNK >> 1)

    server = downloads(hub, tmp_path)
    server.start(REFERENCE)
    half = await until(server, State.RUNNING, CHUNK)
    assert CHUNK <= half.done_bytes < half.total_bytes
    await server.pause(SMALL)
    assert (await listed(server)).state is State.PAUSED
    with pytest.raises(NotFound):
        await server.pause(SMALL)
    after = downloads(hub, tmp_path)
    kept = await listed(after)
    assert (kept.state, kept.total_bytes) == (State.PAUSED, half.total_bytes)
    assert kept.done_bytes >= CHUNK
    await after.resume(SMALL)
    await until(after, State.DONE)
    starts = [at for method, name, at in hub.seen if (method, name) == ("GET", WEIGHTS)]
    assert starts == [0, CHUNK]
    (snapshot,) = tmp_path.glob("hub/*/snapshots/*")
    assert (snapshot / WEIGHTS).read_bytes() == weights


SERVER = """\
import asyncio, json, sys
from pathlib import Path
from omlx.models.catalog.reference import Reference
from omlx.models.hub.downloads import Downloads
async def main():
    home, environ = json.loads(sys.argv[1])
    Downloads(Path(home), environ).start(Reference("org/small"))
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_the_process_ends_with_a_server_that_was_killed(hub: Hub, tmp_path: Path) -> None:
    hub.stall[WEIGHTS] = 1000
    home = tmp_path / ".omlx"
    given = json.dumps([str(home), environment(hub, tmp_path)])
    server = subprocess.Popen([sys.executable, "-c", SERVER, given])
    try:
        assert hub.stalled.wait(PATIENCE_S)
        assert Job(home, SMALL).runs
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()

    after = downloads(hub, tmp_path)
    await until(after, State.PAUSED)
    await after.discard(SMALL)
    assert await after.all() == []
    assert not list(tmp_path.glob("hub/models--*"))


async def test_a_wrong_checksum_is_listed_until_a_new_attempt(hub: Hub, tmp_path: Path) -> None:
    hub.corrupt |= {WEIGHTS}

    server = downloads(hub, tmp_path)
    failure = await server.fetch(REFERENCE)
    assert failure.code == "pull.corrupt"
    after = downloads(hub, tmp_path)
    assert (await listed(after)).failure == failure
    hub.corrupt.clear()
    assert await after.fetch(REFERENCE) is None


FULL = """\
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
"""
"""A disk on which no file can become larger than 1 MB: the kernel refuses to write."""


async def test_a_full_disk_is_named_and_what_came_is_kept(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FULL)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    failure = await downloads(hub, tmp_path, PYTHONPATH=paths).fetch(REFERENCE)
    assert failure.code == "pull.disk_full"
    after = downloads(hub, tmp_path)
    assert (await listed(after)).done_bytes > 900_000
    assert await after.fetch(REFERENCE) is None
    assert [at for method, name, at in hub.seen if (method, name) == ("GET", WEIGHTS)][-1] > 900_000


async def test_a_model_that_is_deleted_while_it_downloads(hub: Hub, tmp_path: Path) -> None:
    hub.stall[WEIGHTS] = 1000

    server = downloads(hub, tmp_path)
    fetching = asyncio.create_task(server.fetch(REFERENCE))
    await asyncio.to_thread(hub.stalled.wait, PATIENCE_S)
    shutil.rmtree(tmp_path / "hub/models--org--small")
    hub.released.set()
    assert (await fetching).code == "pull.deleted"
    await server.discard(SMALL)
    assert await server.all() == []


async def test_what_the_hub_refuses_leaves_no_record(hub: Hub, tmp_path: Path) -> None:
    server = downloads(hub, tmp_path)
    hub.gated |= {SMALL}
    for reference, code in ((Reference("org/none"), "not_found"), (REFERENCE, "gated")):
        assert (await server.fetch(reference)).code == f"pull.{code}"
    assert [download.state for download in await server.all()] == [State.FAILED] * 2
    silent = downloads(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert (await silent.fetch(Reference("org/other"))).code == "pull.unreachable"
    with refused(ModelError, "pull.unreachable") as caught:
        await silent.search("small")
    assert "127.0.0.1 cannot be reached" in caught.value.message
    assert "resume" not in caught.value.message


async def test_a_download_of_another_process_is_seen_and_left_alone(
    hub: Hub, tmp_path: Path
) -> None:
    server = downloads(hub, tmp_path)
    job = Job(tmp_path / ".omlx", SMALL)
    with job.claimed(lambda: None):
        job.begin(REFERENCE)
        shown = await listed(server)
        assert (shown.state, shown.elsewhere) == (State.RUNNING, True)
        with pytest.raises(NotFound):
            await server.pause(SMALL)
        for action in (server.discard, server.delete):
            with pytest.raises(Conflict):
                await action(SMALL)
    assert (await listed(server)).state is State.PAUSED


async def test_discarding_an_update_keeps_the_complete_model(hub: Hub, tmp_path: Path) -> None:
    server = downloads(hub, tmp_path)
    assert await server.fetch(REFERENCE) is None
    hub.add(SMALL, DEMO / "hybrid")
    hub.commit = "1" * 40
    hub.corrupt |= {WEIGHTS}
    assert await server.fetch(REFERENCE) is not None
    await server.discard(SMALL)
    places = HubCache("hf-cache", tmp_path / "hub")
    ((_, snapshot),) = places.models()
    assert (snapshot / WEIGHTS).read_bytes() == (DEMO / "draft" / WEIGHTS).read_bytes()
    await server.delete(SMALL)
    assert list(places.models()) == []
