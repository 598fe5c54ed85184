"""The linear layers of a loaded model, as the cost of a pass depends on them."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from omlx.engine.inspection.chip_costs import Costs, LayerWeights, relative_costs
from omlx.engine.model import Model, weight_bytes


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
