"""Model folders with tiny random weights."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.zoo.build import build_family
from tests.zoo.family import SMALL, Family


def save_family(family: Family, folder: Path) -> None:
    """Replace the model in `folder` by a tiny random one of `family` with the same tokenizer."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    model = build_family(family, vocab_extra=vocab_size - SMALL["vocab_size"])
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    tiny = {**SMALL, **family.config, "model_type": family.name, "vocab_size": vocab_size}
    (folder / "config.json").write_text(json.dumps(tiny))
