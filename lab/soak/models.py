"""Two trained models whose weights outweigh the caches of the load, and their draft model.

Their MLPs are widened by hidden units that add nothing: outputs and caches are those of the small
models, and the limit of memory can tell one model from two.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import mlx.core as mx

from omlx.models.catalog.discovery import BUNDLED
from tests.server.running import DRAFT, HYBRID, TARGET

MODELS: Final = {"soak/dense": TARGET, "soak/hybrid": HYBRID}
DRAFT_MODEL: Final = "soak/draft"
WIDTHS: Final = ("intermediate_size", "block_ff_dim")
INPUTS: Final = ("gate_proj", "up_proj", "w1", "w3")
OUTPUTS: Final = ("down_proj", "w2")


def write_models(folder: Path, factor: int) -> None:
    """Write both models, with `factor` times the hidden units, and the draft model."""
    for name, bundled in MODELS.items():
        _widen(BUNDLED / bundled, folder / name, factor)
    shutil.copytree(BUNDLED / DRAFT, folder / DRAFT_MODEL)


def _widen(source: Path, place: Path, factor: int) -> None:
    shutil.copytree(source, place)
    config = json.loads((source / "config.json").read_text())
    config |= {name: config[name] * factor for name in WIDTHS if name in config}
    (place / "config.json").write_text(json.dumps(config))
    weights = mx.load(str(source / "model.safetensors"))
    assert isinstance(weights, dict)
    for name, weight in weights.items():
        projection = name.split(".")[-2]
        if projection in INPUTS:
            weights[name] = mx.tile(weight, (factor, 1))
        elif projection in OUTPUTS:
            silent = mx.zeros((weight.shape[0], weight.shape[1] * (factor - 1)), weight.dtype)
            weights[name] = mx.concatenate([weight, silent], axis=1)
    mx.save_safetensors(str(place / "model.safetensors"), weights, {"format": "mlx"})
