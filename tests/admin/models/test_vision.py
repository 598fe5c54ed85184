"""Models that see on the dashboard and in the status: whether, why not, and their towers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import Registry
from tests.admin.running import administered
from tests.models.eyes.folders import save_vlm
from tests.server.running import DEMO, TARGET

pytestmark = pytest.mark.needs_extra


def test_a_model_that_sees_shows_its_tower_and_one_that_does_not_why(tmp_path: Path) -> None:
    save_vlm("smolvlm", tmp_path / "models" / "smolvlm")
    entry = inspect_checkpoint("smolvlm", tmp_path / "models" / "smolvlm", "test")
    registry = Registry((*DEMO.entries, entry))
    with (
        administered(tmp_path / "home", registry, "smolvlm") as running,
        running.browser() as client,
    ):
        page = client.get("/admin/models").text
        assert page.count("reads images") == 1
        before = client.get("/v1/models/smolvlm").json()["vision"]
        assert before == {"on": True, "reason": None, "tower_bytes": None}
        body = {"model": "smolvlm", "prompt": "a", "max_tokens": 1}
        assert client.post("/v1/completions", json=body).status_code == 200
        shown = client.get("/admin/models/smolvlm").text
        assert re.search(r"reads images</span>\s*<span>vision tower \d", shown)
        vision = client.get("/v1/models/smolvlm").json()["vision"]
        assert vision["on"]
        assert vision["tower_bytes"] > 0
        text = client.get(f"/v1/models/{TARGET}").json()["vision"]
        assert text["reason"]["code"] == "vision.off.text"


def test_vision_that_is_off_says_so(tmp_path: Path) -> None:
    save_vlm("smolvlm", tmp_path / "models" / "smolvlm")
    entry = inspect_checkpoint("smolvlm", tmp_path / "models" / "smolvlm", "test")
    registry = Registry((*DEMO.entries, entry))
    with (
        administered(tmp_path / "home", registry, "smolvlm", vision=False) as running,
        running.browser() as client,
    ):
        shown = client.get("/admin/models/smolvlm").text
        assert "Vision is turned off in the settings of this model." in shown
        assert "reads images" not in shown
        vision = client.get("/v1/models/smolvlm").json()["vision"]
        assert vision["reason"]["code"] == "vision.off.setting"
