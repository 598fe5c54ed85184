"""The example request fits what a model does."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from omlx.cli.serve.announcement import example
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from tests.cli.serving import serving
from tests.server.encoders.tiny import declare, write
from tests.server.running import TARGET

ADDRESS = "http://127.0.0.1:8000"
CHAT = ModelEntry(TARGET, BUNDLED / TARGET, "bundled")


def asked(*models: ModelEntry) -> tuple[str, dict[str, Any]]:
    """Return path and body of the example."""
    _, line = example(models, ADDRESS, with_key=False)
    words = shlex.split(line)
    (url,) = (word for word in words if word.startswith(ADDRESS))
    return url.removeprefix(ADDRESS), json.loads(words[-1])


def test_a_chat_is_shown_before_an_embedding(tmp_path: Path) -> None:
    encoder = declare(write(tmp_path / "e", "bert"), {"pooling_mode": "mean"}, normalize=True)
    path, body = asked(encoder, CHAT)
    assert (path, body["model"]) == ("/v1/chat/completions", TARGET)
    assert body["temperature"] == 0, "everyone sees the likeliest answer"


def test_an_encoder_alone_is_asked_for_a_vector_or_a_score(tmp_path: Path) -> None:
    encoder = declare(write(tmp_path / "e", "bert"), {"pooling_mode": "mean"}, normalize=True)
    judge = write(tmp_path / "j", "bert", labels=1)
    path, body = asked(encoder)
    assert (path, body.keys()) == ("/v1/embeddings", {"model", "input"})
    path, body = asked(judge)
    assert (path, body.keys()) == ("/v1/rerank", {"model", "query", "documents"})


def test_a_model_that_does_nothing_alone_has_no_example(tmp_path: Path) -> None:
    assert example([write(tmp_path / "e", "bert")], ADDRESS, with_key=False) == []
    assert example([], ADDRESS, with_key=False) == []


@pytest.mark.needs_extra
def test_the_server_of_an_encoder_prints_a_request_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "models/org/e"
    declare(write(folder, "bert"), {"pooling_mode": "mean"}, normalize=True)
    with serving(tmp_path, "--model-dir", str(tmp_path / "models")) as server:
        command = ["sh", "-c", server.announced[-1]]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(answer)["data"][0]["embedding"]
