"""Export of a model as a directory that mlx-lm loads: config, bfloat16 weights, tokenizer,
generation config.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from training.models import Config
from training.tokenizer import END_OF_TEXT, IM_END, write_tokenizer


def export(model: nn.Module, config: Config, tokenizer: Tokenizer, folder: Path) -> None:
    """Replace the files in ``folder`` one by one, each by a rename, so that no reader sees half a
    file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(weights, staging / "model.safetensors", metadata={"format": "mlx"})
    _write_json(staging / "config.json", config)
    generation = {
        "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
        "do_sample": False,
    }
    _write_json(staging / "generation_config.json", generation)
    write_tokenizer(tokenizer, staging)
    for file in staging.iterdir():
        file.chmod(0o644)
        os.replace(file, folder / file.name)
    shutil.rmtree(staging)


def _write_json(path: Path, content: Config) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
