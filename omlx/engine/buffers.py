"""MLX's buffers: released, and the attention kernels of the device that fills them."""

from __future__ import annotations

import platform
import re
from typing import Final

import mlx.core as mx

from omlx.engine.prefill.activations import Kernels

_MATRIX_UNITS_SINCE: Final = 17
"""GPU generation of the M5."""
_MATRIX_UNITS_MACOS: Final = (26, 2)


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


def attention_kernels() -> Kernels:
    """Return the fused attention kernels that the default device has."""
    if not on_gpu():
        return "none"
    generation = re.match(r"applegpu_g(\d+)", str(mx.device_info().get("architecture", "")))
    macos = tuple(int(part) for part in platform.mac_ver()[0].split(".")[:2] if part)
    if generation is None or macos < _MATRIX_UNITS_MACOS:
        return "metal"
    return "matrix units" if int(generation[1]) >= _MATRIX_UNITS_SINCE else "metal"
