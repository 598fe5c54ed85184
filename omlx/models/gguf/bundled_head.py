"""A bundled draft head, written beside a model that was converted from a GGUF file.

It is bundled packed, and written as the model's weights are: packed, or in float32 on a CPU, where
packed products take longer than dense ones.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import mlx.core as mx

from omlx.errors import ModelError
from omlx.models.catalog.files import read_config
from omlx.models.gguf.convert import sha256

NAME: Final = "mtp.safetensors"
GROUP_SIZE: Final = 64
"""Weights of a bundled head that share a scale."""
_BUNDLED: Final = "omlx_bundled"
"""Key of the metadata with the SHA-256 of the bundled file."""


def write_head(bundled: Path, folder: Path) -> None:
    """Write a bundled head to the folder of its model, unless it is there, or one of a user's own.

    An older bundled one is replaced. Raises ModelError.
    """
    digest = sha256(bundled)
    if (folder / NAME).exists() and _source(folder / NAME) in (None, digest):
        return
    dense = "quantization" not in read_config(folder, "config.json")
    try:
        tensors = cast(dict[str, mx.array], mx.load(str(bundled)))
        with TemporaryDirectory(prefix=".mtp-", dir=folder) as beside:
            part = Path(beside) / NAME
            written = _dense(tensors) if dense else tensors
            mx.save_safetensors(str(part), written, metadata={"format": "mlx", _BUNDLED: digest})
            part.chmod(0o644)
            part.replace(folder / NAME)
    except (OSError, RuntimeError) as error:  # of mlx: RuntimeError
        detail = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise ModelError("gguf.not_written", model=folder.name, detail=detail) from error


def _source(file: Path) -> str | None:
    """Return the checksum of the bundled head that a file was made of; None: it was not."""
    try:
        _, metadata = mx.load(str(file), return_metadata=True)
    except RuntimeError:
        return None  # damaged: loading the model says so
    return cast(dict[str, str], metadata).get(_BUNDLED)


def _dense(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return tensors in float32; ids stay as they are."""
    dense: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        scales = tensors.get(f"{module}.scales")
        if scales is None or part not in ("weight", "scales", "biases"):
            dense[name] = tensor
        elif part == "weight":
            dense[name] = _unpacked(tensor, scales, tensors[f"{module}.biases"])
    return {
        name: tensor.astype(mx.float32) if mx.issubdtype(tensor.dtype, mx.floating) else tensor
        for name, tensor in dense.items()
    }


def _unpacked(packed: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
    """Return weights [rows, columns] of words [rows, n] in groups of `GROUP_SIZE`."""
    bits = packed.shape[-1] * 32 // (scales.shape[-1] * GROUP_SIZE)
    return mx.dequantize(packed, scales, biases, group_size=GROUP_SIZE, bits=bits)
