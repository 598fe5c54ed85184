"""A draft head from its files: names, experts, norms, quantization. On the engine thread.

| published                            | here                                     |
|--------------------------------------|------------------------------------------|
| `mtp.` before every name             | norms count from zero: one is added once |
| `experts.0.up_proj`, `experts.1.` …  | stacked as `switch_mlp.up_proj`          |
| `experts.gate_up_proj`               | split                                    |
| `fc.scales` beside `fc.weight`       | a quantized module, as the shapes say    |
| `draft_token_ids`                    | the ids that the head drafts, int32 [n]  |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.errors import ModelError
from omlx.models.catalog.head_files import PREFIX, SHORTLIST, HeadFiles

if TYPE_CHECKING:
    from omlx.engine.device.model import Model
    from omlx.models.pool.head import HeadModule

_SHIFTED: Final = frozenset({"qwen3_5", "qwen3_5_moe", "qwen3_next"})
"""Architectures whose published norms count from zero."""

_UNUSED: Final = ("embed_tokens.", "lm_head.", "shared_head.head.")
"""Copies of what the target has."""


def is_quantized(head: nn.Module) -> bool:
    """Return whether a module of a head has packed weights."""
    return any(isinstance(module, nn.QuantizedLinear) for module in head.modules())


def build_head(files: HeadFiles, target: Model) -> HeadModule:
    """Return a head with lazy weights for `target`. Raises ModelError `spec.off.head_weights`."""
    from omlx.engine.device.model import parts_of  # noqa: PLC0415 — see `import_mlx_lm`
    from omlx.models.pool.head import LAYERS, HeadModule  # noqa: PLC0415 — as above

    architecture, parts = type(target).__module__.rpartition(".")[2], parts_of(target)
    if architecture not in LAYERS or parts is None:
        raise ModelError("spec.off.head_unsupported", model_type=architecture)
    tensors = _named(_read(files), shifted=files.prefix == PREFIX and architecture in _SHIFTED)
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if len(layers) > 1 and architecture in _SHIFTED:
        raise _refused(f"{len(layers)} layers, where only heads of one are known")
    head = HeadModule(architecture, parts.text.args, max(1, len(layers)))
    head.draft_token_ids = tensors.get(SHORTLIST)
    try:
        _quantize(head, tensors, files.config)
        head.load_weights([*tensors.items()])
    except ValueError as error:  # names or shapes of other layers
        raise _refused(" ".join(str(error).split())) from error
    return head


def _read(files: HeadFiles) -> dict[str, mx.array]:
    """Return the lazy tensors of a head, by their names without the prefix."""
    tensors: dict[str, mx.array] = {}
    for file, names in files.names.items():
        held = cast(dict[str, mx.array], mx.load(str(file)))
        for name in names:
            short = name.removeprefix(files.prefix)
            if not short.startswith(_UNUSED):
                tensors[short] = held[name]
    return tensors


def _named(tensors: Mapping[str, mx.array], *, shifted: bool) -> dict[str, mx.array]:
    """Return tensors as mlx-lm's layers name them, with experts stacked and norms around one."""
    named: dict[str, mx.array] = {}
    experts: dict[str, dict[int, mx.array]] = defaultdict(dict)
    for name, tensor in tensors.items():
        before, expert, behind = name.partition(".experts.")
        number, _, part = behind.partition(".")
        if not expert:
            is_norm = tensor.ndim == 1 and "norm" in name and name.endswith(".weight")
            named[name] = tensor + 1.0 if shifted and is_norm else tensor
        elif number.isdecimal():
            experts[f"{before}.switch_mlp.{part}"][int(number)] = tensor
        elif behind == "gate_up_proj":
            gate, up = mx.split(tensor, 2, axis=-2)
            named[f"{before}.switch_mlp.gate_proj.weight"] = gate
            named[f"{before}.switch_mlp.up_proj.weight"] = up
        else:
            named[f"{before}.switch_mlp.{behind}.weight"] = tensor
    for name, parts in experts.items():
        named[name] = mx.stack([parts[number] for number in sorted(parts)])
    return named


def _quantize(head: nn.Module, tensors: Mapping[str, mx.array], config: Mapping[str, Any]) -> None:
    """Quantize the modules that have scales, as the shapes of their tensors say."""
    settings = config.get("quantization") or config.get("quantization_config") or {}
    mode = settings.get("mode", "affine")

    def form(path: str, module: nn.Module) -> bool | dict[str, Any]:
        scales, packed = tensors.get(f"{path}.scales"), tensors.get(f"{path}.weight")
        if scales is None or packed is None:
            return False
        inputs = cast(Any, module).weight.shape[-1]
        return {
            "group_size": inputs // scales.shape[-1],
            "bits": packed.shape[-1] * 32 // inputs,
            "mode": mode,
        }

    nn.quantize(head, class_predicate=form)


def _refused(detail: str) -> ModelError:
    return ModelError("spec.off.head_weights", detail=detail[:300])
