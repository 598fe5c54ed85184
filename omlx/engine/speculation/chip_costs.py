"""Relative costs of passes on Apple's GPUs, for a latency table in which nothing is measured.

mlx multiplies quantized weights row by row, in groups of rows, or as a matrix, depending on chip,
size and number of rows (`quantized.cpp`, 0.32). The figures are those that users of these machines
published for a pass over some rows, in passes over one; every measurement replaces them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from omlx.engine.device.model import Model, weight_bytes


def expected_costs(model: Model) -> Costs | None:
    """Return what passes of `model` are expected to cost on this GPU, in passes over one token.

    None on a CPU, and on a GPU that is not Apple's.
    """
    if mx.default_device().type != mx.DeviceType.gpu or not isinstance(model, nn.Module):
        return None
    architecture = str(mx.device_info().get("architecture", ""))
    return relative_costs(architecture, list(layer_weights(model)))


def layer_weights(model: nn.Module) -> Iterator[LayerWeights]:
    """Yield the linear layers of a model, quantized or not. Reads shapes alone."""
    for _, module in model.named_modules():
        experts = isinstance(module, SwitchLinear | QuantizedSwitchLinear)
        if not experts and not isinstance(module, nn.Linear | nn.QuantizedLinear):
            continue
        *_, outputs, inputs = module.weight.shape
        nbytes = weight_bytes(module)
        if isinstance(module, nn.QuantizedLinear | QuantizedSwitchLinear):
            unpacked = inputs * 32 // module.bits
            yield LayerWeights(unpacked, outputs, nbytes, module.bits, module.mode, experts)
        else:
            yield LayerWeights(inputs, outputs, nbytes, experts=experts)


Costs = Callable[[int], float]
"""Returns the cost of a pass over `width` tokens, in passes over one."""

Curve = tuple[tuple[int, float], ...]
"""Costs by width, linear in between, flat from the last one to a block of 32 rows."""

BLOCK: Final = 32
"""Rows that a matrix product reads at once."""

M1, M2, M3, M4, M5 = range(13, 18)
"""Generations, as in the architecture `applegpu_g13s`."""

WIDE: Final[Curve] = ((1, 1.0), (2, 1.03), (3, 1.22), (4, 1.47), (5, 1.75), (6, 2.07), (8, 2.7))
"""M4 Pro, 4 bit: mlx issues 3839 and 3852. Weights are read once for five rows."""

WIDE_LIMIT: Final = (12, 4.5)

WIDE_M3_ULTRA: Final[Curve] = ((1, 1.0), (2, 1.83), (4, 3.26), (8, 6.12), (16, 6.32))
"""M3 Ultra, 4 bit: mlx issue 4265."""

WIDE_M5: Final[Curve] = ((1, 1.0), (3, 1.12), (5, 1.45), (8, 2.22), (12, 3.2), (16, 3.9))
"""M5 Max, a model of 70B: mlx issue 3791."""

TWO_BIT: Final[Curve] = ((1, 1.0), (2, 1.3), (3, 1.82), (4, 2.34), (5, 2.86), (8, 4.53), (12, 7.3))
"""M4 Pro: mlx issue 3852."""

PLAIN_FLOAT: Final[Curve] = ((1, 1.0), (2, 2.0))
"""M3 Ultra, bfloat16: mlx issue 4265. From two rows on a matrix product."""

EXPERTS: Final[Curve] = ((1, 1.0), (2, 1.59), (3, 1.85), (5, 2.44), (8, 3.32))
"""A mixture of experts of 30B: vllm-mlx issue 763. Each row reads experts of its own, so the cost
keeps growing."""

NARROW_LIMITS: Final = (14, 10, 6)
NARROW_LIMITS_ULTRA: Final = (32, 18, 12)
"""Rows from which on M1 and M2 multiply as a matrix, for inputs and outputs of up to 2,048, up to
4,096, and more. Fewer rows read the weights once each."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """A linear layer: its sizes, the bytes of its weights, and how they are stored.

    `bits` is None where they are not quantized, `mode` mlx's name, such as affine or mxfp4.
    """

    inputs: int
    outputs: int
    nbytes: int
    bits: int | None = None
    mode: str = "affine"
    experts: bool = False


def relative_costs(architecture: str, layers: Sequence[LayerWeights]) -> Costs | None:
    """Return what passes cost on a GPU of mlx's `architecture`; None where nothing is known of it.

    Layers count by their bytes: a pass takes as long as reading them.
    """
    chip = re.fullmatch(r"applegpu_g(\d+)([a-z])", architecture)
    total = sum(layer.nbytes for layer in layers)
    if chip is None or int(chip[1]) < M1 or not total:
        return None
    generation, ultra = int(chip[1]), chip[2] == "d"
    if any(layer.experts for layer in layers):
        return _growing(EXPERTS)
    shares: dict[Curve, float] = {}
    for layer in layers:
        curve = _curve(generation, ultra, layer)
        shares[curve] = shares.get(curve, 0.0) + layer.nbytes / total
    return lambda width: sum(share * _flat(curve, width) for curve, share in shares.items())


def _curve(generation: int, ultra: bool, layer: LayerWeights) -> Curve:
    if layer.bits is None:
        return PLAIN_FLOAT
    affine = layer.mode == "affine"
    if affine and generation <= M2:
        limits = NARROW_LIMITS_ULTRA if ultra else NARROW_LIMITS
        limit = limits[bisect_right((2048, 4096), max(layer.inputs, layer.outputs) - 1)]
        return ((1, 1.0), (limit, float(limit)))
    if affine and layer.bits == 2:
        return TWO_BIT
    if generation >= M5:
        return WIDE_M5
    if ultra and affine:
        return WIDE_M3_ULTRA
    return (*WIDE, WIDE_LIMIT)


def _flat(curve: Curve, width: int) -> float:
    """Return the cost at `width`, with the last one of the curve for each block of rows."""
    last, most = curve[-1]
    if width >= last:
        return most * -(-width // BLOCK)
    return _between(curve, width)


def _growing(curve: Curve) -> Costs:
    """Return costs that grow behind the curve as between its last two widths."""
    (near, less), (last, most) = curve[-2:]
    slope = (most - less) / (last - near)
    return lambda width: _between(curve, width) if width < last else most + slope * (width - last)


def _between(curve: Curve, width: int) -> float:
    i = bisect_right(curve, width, key=lambda point: point[0])
    (low, value), (high, above) = curve[i - 1], curve[i]
    return value + (above - value) * (width - low) / (high - low)
