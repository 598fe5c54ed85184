"""Beginnings that return, over processes: an update of the model makes what is on disk useless."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import pytest

from omlx.models.catalog.discovery import BUNDLED
from tests.cli.killed import serving
from tests.cli.test_prefix_restart import SYSTEM, ask
from tests.server.running import HYBRID, PATIENCE_S
from tests.storage import homes

MODEL = "agent/hybrid"


def wait_until_cached(client: httpx.Client, tokens: int) -> None:
    body = {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Anything else."},
        ]
    }
    until = time.monotonic() + PATIENCE_S
    while True:
        probed = client.post(f"/v1/models/{MODEL}/prefixes/probe", json=body).json()
        if (probed["cached_tokens"] or 0) >= tokens:
            return
        assert time.monotonic() < until, probed
        time.sleep(0.2)  # it is computed once the server is idle


@pytest.mark.slow
def test_an_updated_model_is_warm_before_its_first_request(tmp_path: Path) -> None:
    folder = tmp_path / "models" / MODEL
    shutil.copytree(BUNDLED / HYBRID, folder)
    # By default the prefixes of a disk with less than 10 GiB free stay in memory.
    room = ("--prefix-disk", "100MB")
    arguments = ("--prewarm", "always", "--model-dir", str(tmp_path / "models"), *room)
    with serving(tmp_path, MODEL, signal.SIGTERM, *arguments) as (client, _):
        first = ask(client, MODEL, "Name a hill.")
        ask(client, MODEL, "Name a river.")
    assert homes.rows(tmp_path / ".omlx", "select * from beginnings")
    assert (tmp_path / ".omlx" / "omlx.sqlite").stat().st_mode & 0o777 == 0o600
    os.utime(folder / "model.safetensors", (1, 1))  # another state of the model
    with serving(tmp_path, MODEL, signal.SIGTERM, *arguments) as (client, _):
        wait_until_cached(client, first["prompt"] - 40)
        again = ask(client, MODEL, "Name a hill.")
        assert again["cached"] >= first["prompt"] - 40
        assert again["text"] == first["text"]
        assert client.get(f"/v1/models/{MODEL}").json()["prefixes"]["disk"]["hits"] == 0
