"""Pooling of embeddings, as a model declares it in the files of sentence-transformers.

modules.json             Transformer, Pooling, and perhaps Normalize, in this order
1_Pooling/config.json    which hidden states count
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from omlx.errors import BadRequest
from omlx.models.catalog.encoders import is_encoder
from omlx.models.catalog.model_config import read_config
from omlx.models.package.modules import module_kinds, read_modules

PoolingMode = Literal["cls", "last", "mean"]

_CAUSAL: Final[dict[str, PoolingMode]] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
_ENCODER: Final[dict[str, PoolingMode]] = {**_CAUSAL, "pooling_mode_cls_token": "cls"}
"""The first token of a causal model has seen no other."""
_DECLARED: Final = "pooling_mode"
_NAMED: Final = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
"""The flags of modes whose names are shorter."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """`normalize`: vectors have length 1."""

    mode: PoolingMode
    normalize: bool


def pooling(directory: Path, model: str) -> Pooling:
    """Return how a model pools.

    Raises BadRequest for a model that declares nothing or an unsupported pooling, ModelError for
    files that cannot be read.
    """
    modules = read_modules(directory)
    kinds = module_kinds(modules)
    if not modules:
        raise BadRequest("embedding.undeclared", param="model", model=model)
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BadRequest("embedding.modules", param="model", model=model, modules=", ".join(kinds))
    config = read_config(directory, f"{modules[1].get('path') or '1_Pooling'}/config.json")
    modes = [
        name for name, value in config.items() if name.startswith(f"{_DECLARED}_") and value is True
    ]
    declared = config.get(_DECLARED)  # of newer versions, in place of one flag per mode
    if not modes and isinstance(declared, str):
        modes = [_NAMED.get(declared, f"{_DECLARED}_{declared}")]
    supported = _ENCODER if is_encoder(read_config(directory, "config.json")) else _CAUSAL
    if len(modes) != 1 or modes[0] not in supported:
        listed = ", ".join(modes) or "none"
        raise BadRequest("embedding.pooling", param="model", model=model, modes=listed)
    return Pooling(supported[modes[0]], "Normalize" in kinds)
