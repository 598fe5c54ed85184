"""Text models of mlx-vlm over HTTP, by OpenAI's client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx
from tests.zoo.build import save_borrowed

pytestmark = [
    pytest.mark.needs_extra,
    pytest.mark.filterwarnings("ignore"),  # transformers warns of types that it does not know
]
NAMES = ("mimo_v2", "qwen4_exp")
"""Rows of the first share a batch; those of the second run one after another."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        folder = Path(shutil.copytree(BUNDLED / TARGET, root / name))
        for head in folder.glob("mtp*.safetensors"):
            head.unlink()
        save_borrowed(name, folder)
    with omlx(registry=scan_places([Folder("test", root)]), default=NAMES[0]) as server:
        yield server


def written(message: Any) -> str:
    """Return the reasoning and the content of a message, or of a piece of one."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


@pytest.mark.parametrize("model", NAMES)
def test_a_chat_is_the_same_streamed_and_with_drafts(running: Running, model: str) -> None:
    client = OpenAI(base_url=f"{running.url}/v1", api_key="none")
    asked = {"model": model, "messages": user("Count to nine, then count to nine.")}
    asked |= {"max_tokens": 24, "seed": 3, "temperature": 0.8}
    plain = client.chat.completions.create(**asked, extra_body={"speculation": "off"})
    text = written(plain.choices[0].message)
    assert text
    stream = client.chat.completions.create(**asked, stream=True)
    assert "".join(written(part.choices[0].delta) for part in stream if part.choices) == text
    drafts = {"speculation": "ngram", "num_draft_tokens": 3}
    prediction = {"type": "content", "content": text}
    drafted = client.chat.completions.create(**asked, prediction=prediction, extra_body=drafts)
    assert written(drafted.choices[0].message) == text
    assert drafted.timings["draft_n"] > 0


def test_a_model_says_which_library_computes_it(running: Running) -> None:
    record = httpx.get(f"{running.url}/v1/models/mimo_v2", timeout=60).json()
    assert record["library"] == f"mlx-vlm {version('mlx-vlm')}"
