"""Export of a model as a directory that mlx-lm loads: config, bfloat16 weights, tokenizer,
generation config.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.models import Config
from training.sight import SightModel
from training.tokenizer import END_OF_TEXT, IM_END, write_tokenizer


def export(
    model: nn.Module,
    config: Config,
    tokenizer: Tokenizer,
    folder: Path,
    more: Mapping[str, Config] | None = None,
    *,
    reasons: bool = True,
) -> None:
    """Replace the files in ``folder`` one by one, each by a rename, so that no reader sees half a
    file. ``more`` are further files, by name; ``reasons`` as in `Chat`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in weights_of(model).items()
    }
    save_file(weights, staging / "model.safetensors", metadata={"format": "mlx"})
    generation = {
        "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
        "do_sample": False,
    }
    files = {"config.json": config, "generation_config.json": generation, **(more or {})}
    for name, content in files.items():
        _write_json(staging / name, content)
    write_tokenizer(tokenizer, staging, reasons=reasons)
    for file in staging.iterdir():
        file.chmod(0o644)
        os.replace(file, folder / file.name)
    shutil.rmtree(staging)


def weights_of(model: nn.Module) -> Mapping[str, Tensor]:
    """Return weights under the names that mlx-lm or mlx-vlm reads."""
    return model.weights() if isinstance(model, SightModel) else model.state_dict()


def export_head(head: nn.Module, folder: Path) -> None:
    """Replace ``mtp.safetensors`` in the folder of its model."""
    weights = {
        f"mtp.{name}": weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in head.state_dict().items()
    }
    part = folder / "mtp.part"
    save_file(weights, part, metadata={"format": "mlx"})
    part.chmod(0o644)
    os.replace(part, folder / "mtp.safetensors")


def _write_json(path: Path, content: Config) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
