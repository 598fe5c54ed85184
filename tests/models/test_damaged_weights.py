"""Weights and configs that make a model compute NaN: found at load, by a probe pass."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from tests.server.running import DRAFT, Running, omlx

CHAT = "/v1/chat/completions"
GOOD = "good"
Damage = Callable[[Path], None]


def with_weights(change: Callable[[dict[str, mx.array]], None]) -> Damage:
    def damage(folder: Path) -> None:
        weights: dict[str, Any] = dict(mx.load(str(folder / "model.safetensors")))
        change(weights)
        mx.eval(weights)
        mx.save_safetensors(str(folder / "model.safetensors"), weights)

    return damage


def with_config(**values: object) -> Damage:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return damage


def filled(value: float, *parts: str) -> Damage:
    """Fill the weights whose name has one of `parts` with `value`."""

    def change(weights: dict[str, mx.array]) -> None:
        for name, weight in weights.items():
            if any(part in name for part in parts):
                weights[name] = mx.full(weight.shape, value, weight.dtype)

    return with_weights(change)


def flipped_exponents(folder: Path) -> None:
    """Set the highest exponent bits of every hundredth 16-bit number of the data."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for offset in range(start + 1, len(data), 200):
        data[offset] |= 0x7F
    file.write_bytes(data)


DAMAGES: dict[str, Damage] = {
    "nan-layer": filled(math.nan, "layers.1."),
    "nan-norm": filled(math.nan, "model.norm"),
    "infinite-norm": filled(math.inf, "model.norm"),
    "nan-embedding": filled(math.nan, "embed_tokens"),
    "huge-weights": filled(3e38, "mlp"),
    "flipped-exponents": flipped_exponents,
    "rope-theta-zero": with_config(rope_theta=0),
    "epsilon-nan": with_config(rms_norm_eps=math.nan),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(BUNDLED / DRAFT, root / GOOD)
    for name, damage in DAMAGES.items():
        damage(shutil.copytree(BUNDLED / DRAFT, root / name))
    with omlx(registry=scan_places([Folder("models", root)]), default=GOOD) as server:
        yield server


def ask(running: Running, model: str) -> httpx.Response:
    messages = [{"role": "user", "content": "Count to nine."}]
    body = {"model": model, "messages": messages, "max_tokens": 8}
    return httpx.post(f"{running.url}{CHAT}", json=body, timeout=60)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_model_that_computes_nan_is_not_served(running: Running, name: str) -> None:
    for _ in range(2):
        refusal = ask(running, name)
        assert refusal.status_code == 400, refusal.text
        assert refusal.json()["error"]["code"] == "model.not_finite"
    state = httpx.get(f"{running.url}/v1/models/{name}").json()
    assert (state["state"], state["prefixes"]) == ("unloaded", None)
    assert ask(running, GOOD).status_code == 200
