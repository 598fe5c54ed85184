"""`omlx models`: names and reasons on a terminal; and a running server's list of models."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import httpx

from omlx.models.catalog.discovery import BUNDLED
from tests.cli.inside import omlx
from tests.cli.serving import serving
from tests.models import trees
from tests.server.running import PATIENCE_S


def listing(home: Path, *arguments: str) -> str:
    return omlx(home, "models", "--no-bundled", *arguments).stdout


def test_names_and_reasons_cannot_steer_a_terminal(tmp_path: Path) -> None:
    models = tmp_path / ".omlx/models"
    trees.model(models / "\x1b[31mred")
    trees.model(models / "two\nlines")
    trees.model(models / "type", {"model_type": "\x1b]0;title\x07\u202e"})
    text = listing(tmp_path)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert len(text.strip().splitlines()) == 4, "a heading and a line each"
    assert "\\x1b[31mred" in text
    ids = {record["id"] for record in json.loads(listing(tmp_path, "--json"))}
    assert ids == {"\x1b[31mred", "two\nlines", "type"}


def test_drafters_are_listed_apart_with_what_they_need(tmp_path: Path) -> None:
    models = tmp_path / ".omlx/models"
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "vocab_size": 96}
    trees.model(models / "eagle", {"model_type": "llama", **config})
    trees.model(models / "broken", {"model_type": "llama"}, [])
    drafters, others = (part.splitlines() for part in listing(tmp_path).strip().split("\n\n"))
    assert [line.split()[0] for line in (*drafters[1:], *others[1:])] == ["eagle", "broken"]
    assert {"EAGLE-3", "64", "96"} <= set(re.findall(r"[\w-]+", drafters[1]))
    records = {record["id"]: record for record in json.loads(listing(tmp_path, "--json"))}
    assert [records[name]["drafter"] for name in ("eagle", "broken")] == ["eagle", None]


def test_a_running_server_sees_models_come_and_go(tmp_path: Path) -> None:
    models = tmp_path / ".omlx/models"
    shutil.copytree(BUNDLED / "omlx-demo/draft", models / "first")
    with serving(tmp_path) as server, httpx.Client(base_url=server.url) as http:

        def listed() -> list[str]:
            return [model["id"] for model in http.get("/v1/models").json()["data"]]

        def wait_for(expected: list[str]) -> None:
            until = time.monotonic() + PATIENCE_S
            while (seen := listed()) != expected:
                assert time.monotonic() < until, seen
                time.sleep(0.05)  # the list is all that tells

        wait_for(["first"])
        shutil.copytree(BUNDLED / "omlx-demo/draft", models / "copied")
        wait_for(["copied", "first"])
        shutil.rmtree(models / "copied")
        wait_for(["first"])
        gone = http.get("/v1/models/copied")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
