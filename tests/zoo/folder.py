"""A family as a folder that can be served."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.zoo.build import build_family
from tests.zoo.family import SMALL, Family


def save_family(family: Family, folder: Path) -> None:
    """Put a model of `family` with tiny random weights in place of the one in `folder`; it has the same tokens."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    model = build_family(family, vocab_extra=vocab_size - SMALL["vocab_size"])
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    tiny = {**SMALL, **family.config, "model_type": family.name, "vocab_size": vocab_size}
    (folder / "config.json").write_text(json.dumps(tiny))
