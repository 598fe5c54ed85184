"""An encoder as mlx-vlm builds it, and what the engine has to know of one.

It gets an engine loop like other models, which holds its place among them and answers no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.engine.piece import Layout
from omlx.engine.types import Traits
from omlx.errors import ProbeFailed, Reason
from omlx.models.catalog.encoders import ENCODERS, is_classifier

if TYPE_CHECKING:
    from omlx.engine.inspection.facts import ModelFacts

_ROPE: Final = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Keys of ModernBERT that newer configs have in `rope_parameters`."""
_ACTIVATION: Final = "act"
_IS_ENCODER: Final = Reason("model.encoder")


class Encoded(Protocol):
    last_hidden_state: mx.array
    """[rows, tokens, hidden]"""


class Scored(Protocol):
    logits: mx.array
    """[rows, labels]"""


class Encoder(Protocol):
    """An encoder of mlx-vlm."""

    def __call__(self, ids: mx.array, /) -> Encoded: ...


class Classifier(Protocol):
    """One with a head that scores a text or a pair."""

    def __call__(self, ids: mx.array, /, *, token_type_ids: mx.array) -> Scored: ...


def open_encoder(directory: Path, config: Mapping[str, Any]) -> nn.Module:
    """Return an encoder with lazy weights. Raises what mlx-vlm raises."""
    from mlx_vlm.encoder_loader import load_encoder_model  # noqa: PLC0415 — needs the extra

    rope = config.get("rope_parameters") or {}
    thetas = {key: rope[kind]["rope_theta"] for kind, key in _ROPE.items() if kind in rope}
    name = "SequenceClassificationModel" if is_classifier(config) else "Model"
    model: nn.Module = load_encoder_model(
        directory,
        model_remapping=ENCODERS,
        model_class_name=name,
        config={**config, **thetas},
        lazy=True,
    )
    for _, module in model.named_modules():
        if isinstance(module.get(_ACTIVATION), nn.GELU):  # ModernBERT's is the approximated one
            module.update_modules({_ACTIVATION: nn.GELU()})
    return model


def encoder_facts(model: nn.Module, config: Mapping[str, Any], vocab_size: int) -> ModelFacts:
    """Return what the engine has to know of an encoder, after a pass.

    Raises ProbeFailed if its numbers are not finite, and what the model raises.
    """
    from omlx.engine.inspection.facts import ModelFacts  # noqa: PLC0415 — see `import_mlx_lm`
    from omlx.engine.model import weight_bytes  # noqa: PLC0415 — as above

    ids = mx.zeros((1, 2), mx.int32)
    if is_classifier(config):
        result = cast(Classifier, model)(ids, token_type_ids=ids).logits
    else:
        result = cast(Encoder, model)(ids).last_hidden_state
    if not isfinite(cast(float, mx.abs(result).max().item())):
        raise ProbeFailed("model.not_finite")
    return ModelFacts(
        vocab_size=min(vocab_size, int(config["vocab_size"])),
        weight_bytes=weight_bytes(cast(Any, model)),
        traits=Traits(recurrent=False, sliding_window=None, unsupported=()),
        layout=Layout(0),
        unbatchable=_IS_ENCODER,
        no_uneven=_IS_ENCODER,
        uncacheable=_IS_ENCODER,
        no_rewind=_IS_ENCODER,
    )
