"""MLX's buffers: released, those of matrix products, and the attention kernels that fill them."""

from __future__ import annotations

import platform
import re
from functools import cache
from typing import Final

import mlx.core as mx

from omlx.engine.prefill import Kernels

_MATRIX_UNITS_SINCE: Final = 17
"""GPU generation of the M5."""
_MATRIX_UNITS_MACOS: Final = (26, 2)

_PRODUCTS: Final = ((16, 512, 8192), (2048, 512, 16))
"""Rows, inner dimension and columns: one fills the panels of each operand."""


def on_gpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.gpu)


def release_buffers() -> None:
    """Return the buffers that MLX keeps for reuse to the system.

    A GPU is waited for: command buffers in flight may refer to them, and macOS has panicked
    (ml-explore/mlx#3186). Raises what their passes raise.
    """
    if on_gpu():
        mx.synchronize()
    mx.clear_cache()


@cache
def fill_workspace() -> None:
    """Have the CPU's library of matrix products take its workspace, which it keeps.

    MLX does not count it, and it grows with the length of passes: OpenBLAS was measured to take 21
    MB with these two products, and 3 MB more with any. Once taken, it counts as used memory.
    """
    if not on_gpu():
        for rows, inner, columns in _PRODUCTS:
            mx.eval(mx.zeros((rows, inner)) @ mx.zeros((inner, columns)))


def attention_kernels() -> Kernels:
    """Return the fused attention kernels that the default device has."""
    if not on_gpu():
        return "none"
    generation = re.match(r"applegpu_g(\d+)", str(mx.device_info().get("architecture", "")))
    macos = tuple(int(part) for part in platform.mac_ver()[0].split(".")[:2] if part)
    if generation is None or macos < _MATRIX_UNITS_MACOS:
        return "metal"
    return "matrix units" if int(generation[1]) >= _MATRIX_UNITS_SINCE else "metal"
