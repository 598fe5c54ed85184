"""LoRA adapters beside the weights of their base model: a model of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model

from omlx.errors import ModelError
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.facts import fingerprint
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import load
from tests.models.breakage import Breakage, content, cut, missing, weights
from tests.refusals import refused
from tests.server.dialects import user
from tests.server.running import TARGET, omlx

BASE = BUNDLED / TARGET
LORA = {"rank": 4, "scale": 20.0, "dropout": 0.5}


def linked(folder: Path) -> Path:
    """Return a folder with links to the files of the base model."""
    folder.mkdir(parents=True)
    for file in BASE.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def adapted(folder: Path) -> Path:
    """Return a folder with the base model and a random adapter of two layers."""
    model, _ = load_model(linked(folder), lazy=True)
    linear_to_lora_layers(model, 2, LORA)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    layers = [(name, a) for name, a in tree_flatten(model.parameters()) if "lora_" in name]
    mx.random.seed(1)
    drawn = {name: mx.random.normal(array.shape) * 0.05 for name, array in layers}
    mx.save_safetensors(str(folder / "adapters.safetensors"), drawn)
    return folder


def logits(model: Any) -> mx.array:
    return model(mx.array([[5, 6, 7, 8]]))[0]


def test_it_computes_what_mlx_lm_computes_with_the_adapter(tmp_path: Path) -> None:
    folder = adapted(tmp_path / "base+adapter")
    loaded = load(ModelEntry("base+adapter", folder, "home"), "float32")
    reference, _ = load_model(folder)
    reference.set_dtype(mx.float32)
    base = logits(reference)
    load_adapters(reference, str(folder)).eval()
    found, wanted = logits(loaded.model), logits(reference)
    assert mx.allclose(found, wanted, atol=1e-4)
    assert not mx.allclose(found, base, atol=0.1)
    assert set(fingerprint(folder)) - set(fingerprint(BASE)) == {
        "adapter_config.json",
        "adapters.safetensors",
    }


ADAPTER, CONFIG = "adapters.safetensors", "adapter_config.json"
OF_PEFT = content(CONFIG, '{"peft_type": "LORA", "r": 8}')


def widen(tensors: dict[str, mx.array]) -> None:
    for name, array in tensors.items():
        tensors[name] = mx.concatenate([array, array])


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (OF_PEFT, "adapter.peft"),
        (cut(ADAPTER, -64), "model.truncated"),
        (missing(ADAPTER), "model.unreadable"),
        (weights(widen, ADAPTER), "adapter.failed"),  # of another base
        (weights(dict.clear, ADAPTER), "adapter.failed"),  # which would change nothing
        (content(CONFIG, "{}"), "adapter.failed"),
    ],
)
def test_one_that_cannot_be_used_says_why(tmp_path: Path, damage: Breakage, code: str) -> None:
    folder = adapted(tmp_path / "model")
    damage(folder)
    with refused(ModelError, code, model="model") as refusal:
        load(ModelEntry("model", folder, "home"), "float32")
    assert str(refusal.value.__cause__)  # said by the engine thread, before the model is named


@pytest.mark.slow
def test_base_and_adapter_are_two_models(tmp_path: Path) -> None:
    adapted(tmp_path / "base+adapter")
    linked(tmp_path / "base")
    OF_PEFT(linked(tmp_path / "foreign"))
    with omlx(registry=scan_places([Folder("home", tmp_path)]), default="base") as running:
        texts, receipts = [], []
        refusal = running.http.post("/v1/models/foreign/load")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "adapter.peft")
        for name in ("base", "base+adapter", "base"):
            body = {"model": name, "messages": user("Name a river."), "receipt": True}
            asked = {**body, "max_tokens": 8, "temperature": 0}
            answer = running.http.post("/v1/chat/completions", json=asked).json()
            message = answer["choices"][0]["message"]
            texts.append((message.get("reasoning_content") or "") + (message["content"] or ""))
            receipts.append(answer["receipt"]["weights"])
        assert {model.id for model in running.pool.loaded} == {"base", "base+adapter"}
    assert texts[0] == texts[2] != texts[1]
    assert receipts[0] == receipts[2] != receipts[1]
