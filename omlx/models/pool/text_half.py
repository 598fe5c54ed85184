"""The text half of a vision-language model that mlx-lm does not open.

mlx-lm builds the text model of `text_config`; weights are found under the names of transformers and
of mlx-vlm.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import MODEL_REMAPPING

from omlx.models.catalog.text_halves import text_half

_PREFIXES: Final = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.", "model."),
    ("lm_head.", "lm_head."),
)
"""Beginnings of names, and what they are in mlx-lm's text model; the first that fits counts."""


class TextHalfArgs:
    """`text` is the config of the text model."""

    def __init__(self, text: dict[str, Any]) -> None:
        self.text = text

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TextHalfArgs:
        text = text_half(config)
        assert text is not None, config.get("model_type")
        return cls(text)


class TextHalf(nn.Module):
    """mlx-lm's text model, under the name that mlx-vlm gives it."""

    def __init__(self, args: TextHalfArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        name = args.text["model_type"]
        module = import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}")
        self.language_model = module.Model(module.ModelArgs.from_dict(args.text))
        if hasattr(self.language_model, "make_cache"):
            self.make_cache = self.language_model.make_cache

    def __call__(self, inputs: mx.array, cache: Any = None, **more: Any) -> mx.array:
        logits: mx.array = self.language_model(inputs, cache=cache, **more)
        return logits

    def sanitize(self, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        named = [(_text_name(name), array) for name, array in weights.items()]
        text = {name: array for name, array in named if name is not None}
        if hasattr(self.language_model, "sanitize"):
            text = self.language_model.sanitize(text)
        return {f"language_model.{name}": array for name, array in text.items()}

    @property
    def layers(self) -> list[nn.Module]:
        layers: list[nn.Module] = self.language_model.layers
        return layers


def text_half_classes(config: Mapping[str, Any]) -> tuple[type[TextHalf], type[TextHalfArgs]]:
    """Return the classes of model and arguments, as mlx-lm's loader asks for them."""
    return TextHalf, TextHalfArgs


def _text_name(name: str) -> str | None:
    for prefix, replacement in _PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return None
