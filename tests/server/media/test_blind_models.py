"""Vision-language models that cannot see here: the reason is named, and text is served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.errors import Reason
from omlx.installation import extra_command
from omlx.models.vision import support
from omlx.settings.schema import Settings
from tests.models.vision.test_support import drop_tensors
from tests.server.media.pictures import QWEN, asking, seeing, some_uri

pytestmark = pytest.mark.needs_extra


@contextmanager
def client(folder: Path, settings: Settings | None = None) -> Iterator[httpx.Client]:
    with seeing(folder, QWEN, settings=settings) as running:
        yield running.http


def check(http: httpx.Client, reason: Reason) -> None:
    """Check that an image is refused for a reason, and that text is answered."""

    def ask(*parts: str) -> Any:
        body = {"model": QWEN, "messages": [asking(*parts)], "max_tokens": 2}
        return http.post("/v1/chat/completions", json=body)

    refused = ask("What?", some_uri())
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("image.model", "messages[0].content[1]")
    assert error["params"]["model"] == QWEN
    assert reason.message in error["message"]
    assert ask("What?").status_code == 200
    (card,) = (card for card in http.get("/v1/models").json()["data"] if card["id"] == QWEN)
    assert card["input_modalities"] == ["text"]


def test_a_directory_without_vision_weights(tmp_path: Path) -> None:
    with client(tmp_path) as http:
        drop_tensors(tmp_path / QWEN, "vision_tower")
        check(http, Reason("vision.off.no_weights"))


def test_the_extra_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(tmp_path) as http:
        monkeypatch.setattr(support, "_PACKAGES", ("no_such_package",))
        reason = Reason("vision.off.extra", {"command": extra_command("vision")})
        assert "pip install" in reason.message
        check(http, reason)


def test_the_setting_is_off(tmp_path: Path) -> None:
    with client(tmp_path, Settings(vision=False)) as http:
        check(http, Reason("vision.off.setting"))
