"""A model that sees with a draft model that does not, over the socket."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry, Registry
from tests.lanes import few
from tests.models.vision.folders import FIRST, save_vlm
from tests.server.media.pictures import QWEN, asking, some_uri
from tests.server.running import omlx

pytestmark = pytest.mark.needs_extra

FAMILIES = few((QWEN, "gemma3", "smolvlm", "llava_next", "internvl_chat"), QWEN)
NOISE = 0.02
"""Of the draft's weights, as a share of their spread."""

TOWERS = ("vision", "projector", "connector", "mlp1", "newline")


def save_blind_copy(source: Path, folder: Path) -> None:
    """Save the text half of a tiny model, perturbed: its drafts are often right. Its tokenizer has
    reserved tokens in the places of those for images.
    """
    shutil.copytree(source, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        if token["id"] >= FIRST and token["content"] != "<end_of_utterance>":
            token["content"] = f"<|reserved_{token['id']}|>"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    file, key = str(folder / "model.safetensors"), mx.random.key(5)
    kept = {}
    for name, weight in mx.load(file).items():
        if any(part in name for part in TOWERS):
            continue
        key, own = mx.random.split(key)
        kept[name] = weight + NOISE * mx.std(weight) * mx.random.normal(weight.shape, key=own)
    mx.eval(kept)
    mx.save_safetensors(file, kept)


@pytest.fixture(params=FAMILIES)
def http(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    save_vlm(request.param, tmp_path / "sees")
    save_blind_copy(tmp_path / "sees", tmp_path / "drafts")
    entries: list[ModelEntry] = [
        inspect_checkpoint(name, tmp_path / name, "test") for name in ("sees", "drafts")
    ]
    with omlx(registry=Registry(tuple(entries)), default="sees") as running:
        yield running.http


def answer(http: httpx.Client, temperature: float, **more: Any) -> Any:
    body = {
        "messages": [asking("Look: ", some_uri(), " What is it, and what is beside it?")],
        "max_tokens": 48,
        "temperature": temperature,
        "seed": 7,
        "logprobs": True,
        **more,
    }
    sent = http.post("/v1/chat/completions", json=body)
    assert sent.status_code == 200, sent.text
    return sent.json()


def tokens(answered: Any) -> list[str]:
    return [one["token"] for one in answered["choices"][0]["logprobs"]["content"]]


def test_drafts_are_accepted_and_change_nothing(http: httpx.Client) -> None:
    for temperature in (0.0, 0.8):
        plain = answer(http, temperature, speculation="off")
        drafted = answer(http, temperature, draft_model="drafts", num_draft_tokens=3)
        assert tokens(drafted) == tokens(plain)
        details = drafted["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0, drafted
        assert drafted["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] > 30
