"""Conversion of a GGUF file to a folder that mlx-lm loads.

    check header, config, tokenizer ─► read tensors ─► weights ─► folder beside the others ─► rename

Checks precede all writing, and the folder appears once complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx

from omlx.errors import Conflict, ModelError
from omlx.models.catalog.files import ModelFiles, whole_header
from omlx.models.gguf.header import BLOCKS, Header, read_header
from omlx.models.gguf.llama import (
    check_tokenizer,
    llama_config,
    mlx_name,
    paired_heads,
    save_tokenizer,
)

WEIGHTS: Final = "model.safetensors"
GROUP_SIZE: Final = 32
"""Values per block — in all GGUF quantizations that mlx reads."""
_SOURCE: Final = "converted_from"
"""Config key with the SHA-256 of the file."""
_SPARE_BYTES: Final = 64 << 20

Check = Callable[[Path], None]
"""Check of a converted folder before it appears; raises ModelError."""


def convert(file: Path, directory: Path, check: Check = lambda folder: None) -> None:
    """Convert a GGUF file to the folder `directory`; an existing conversion is kept.

    Weights are float32 on a CPU, and as stored on a GPU: quantized, or float16. Raises ModelError,
    also if the folder was made from another file, and leaves nothing behind then; Conflict while
    another process converts.
    """
    header = read_header(file)
    config = llama_config(header, check_tokenizer(header.metadata))
    digest = sha256(file)
    if directory.exists():
        source = ModelFiles.at(directory).config.get(_SOURCE)
        if source != digest or not (directory / WEIGHTS).is_file():
            raise ModelError("gguf.exists", model=directory.name, path=str(directory))
        whole_header(directory / WEIGHTS)
        return
    dense = mx.default_device().type == mx.DeviceType.cpu
    with _appearing(directory, _bytes(header, dense=dense)) as folder:
        weights = _weights(file, config, dense=dense)
        whole = {
            **config,
            _SOURCE: digest,
            **_stop_tokens(header.metadata),
            **_precision(header, dense=dense),
        }
        (folder / "config.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        save_tokenizer(header.metadata, folder)
        mx.save_safetensors(str(folder / WEIGHTS), weights, metadata={"format": "mlx"})
        whole_header(folder / WEIGHTS)
        check(folder)


def sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        detail = f"{file.name}: {error.strerror}"
        raise ModelError("model.unreadable", detail=detail) from None


@contextmanager
def _appearing(directory: Path, size: int) -> Iterator[Path]:
    """Yield a hidden folder that becomes `directory`, or is deleted after an error.

    Raises Conflict while another process converts, ModelError without `size` bytes of disk space.
    """
    hidden = directory.with_name(f".{directory.name}.converting")
    try:
        hidden.mkdir(parents=True, exist_ok=True)
        with (hidden / "lock").open("w") as lock:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                raise Conflict("gguf.elsewhere", model=directory.name) from None
            try:
                for path in hidden.iterdir():  # of a process that was killed
                    if path.name != "lock":
                        path.unlink()
                free = shutil.disk_usage(hidden).free
                if free < size + _SPARE_BYTES:
                    raise ModelError("gguf.no_space", need=size >> 20, free=free >> 20)
                yield hidden
                (hidden / "lock").unlink()
                hidden.rename(directory)
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
    except OSError as error:
        detail = error.strerror or str(error)
        raise ModelError("gguf.not_written", model=directory.name, detail=detail) from error
    except RuntimeError as error:  # of mlx
        raise ModelError(
            "gguf.not_written", model=directory.name, detail=str(error).rstrip(".")
        ) from error


def _weights(file: Path, config: Mapping[str, Any], *, dense: bool) -> dict[str, mx.array]:
    """Return the tensors under mlx-lm's names; `dense`: in float32."""
    try:
        arrays = cast(dict[str, mx.array], mx.load(str(file), format="gguf"))
    except RuntimeError as error:
        detail = " ".join(str(error).split())
        raise ModelError("gguf.damaged", file=file.name, detail=detail) from None
    weights = {}
    for name, array in arrays.items():
        known = mlx_name(name)
        heads = paired_heads(known, config)
        weights[known] = _halves(array, heads) if heads else array
    if not dense:
        half = {mx.float32: mx.float16}
        return {
            name: array.astype(half.get(array.dtype, array.dtype))
            for name, array in weights.items()
        }
    for name in [name for name in weights if name.endswith(".scales")]:
        module = name.removesuffix(".scales")
        scales, biases = (
            weights.pop(f"{module}.{part}").astype(mx.float32) for part in ("scales", "biases")
        )
        packed = weights[f"{module}.weight"]
        weights[f"{module}.weight"] = unpacked(packed, scales, biases, GROUP_SIZE)
    return {name: array.astype(mx.float32) for name, array in weights.items()}


def unpacked(packed: mx.array, scales: mx.array, biases: mx.array, group_size: int) -> mx.array:
    """Return weights [rows, columns] of words [rows, n] in groups."""
    bits = packed.shape[-1] * 32 // (scales.shape[-1] * group_size)
    return mx.dequantize(packed, scales, biases, group_size=group_size, bits=bits)


def _halves(array: mx.array, heads: int) -> mx.array:
    """Reorder rows of a rotation in pairs to a rotation of halves. [heads x dim, …]"""
    rows, *rest = array.shape
    paired = array.reshape(heads, rows // heads // 2, 2, *rest)
    return paired.swapaxes(1, 2).reshape(array.shape)


def _precision(header: Header, *, dense: bool) -> dict[str, Any]:
    """Return the config keys for the stored precision of weights.

    Modules with another number of bits than most get entries of their own.
    """
    if dense:
        return {"torch_dtype": "float32"}
    bits = {}
    for name, tensor in header.tensors.items():
        if tensor.type.startswith("Q"):
            bits[mlx_name(name).removesuffix(".weight")] = int(tensor.type[1])
    if not bits:
        return {"torch_dtype": "float16"}
    most = max(set(bits.values()), key=[*bits.values()].count)
    quantization: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": most}
    for module, count in bits.items():
        if count != most:
            quantization[module] = {"group_size": GROUP_SIZE, "bits": count}
    return {"torch_dtype": "float16", "quantization": quantization}


def _stop_tokens(metadata: Mapping[str, Any]) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "padding": "pad"}
    found = {ours: metadata.get(f"tokenizer.ggml.{name}_token_id") for name, ours in names.items()}
    return {f"{name}_token_id": token for name, token in found.items() if token is not None}


def _bytes(header: Header, *, dense: bool) -> int:
    """Estimate the bytes of the weights."""
    total = 0
    for tensor in header.tensors.values():
        values, size = BLOCKS["F32" if dense else tensor.type]
        total += math.prod(tensor.shape) * size // values
    return total
