"""Taps on a target: hidden states between layers, for drafters trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from omlx.engine.device.model import Cache


class Taps:
    """The `body` of a target, with the outputs of the layers `ids` of each pass.

    During a pass, callers of the tapped layers stand in the list `layers` in their place: other
    users of the model see no change. Outputs are [rows, widest, D].
    """

    def __init__(
        self, body: Callable[..., mx.array], layers: list[Any], ids: Sequence[int]
    ) -> None:
        self.ids = tuple(ids)
        self._body = body
        self._layers = layers
        self._outputs: dict[int, mx.array] = {}

    def __call__(self, tokens: mx.array, *, cache: Cache) -> mx.array:
        layers = {i: self._layers[i] for i in self.ids}
        self._outputs.clear()
        for i, layer in layers.items():
            self._layers[i] = _TappedLayer(layer, i, self._outputs)
        try:
            return self._body(tokens, cache=cache)
        finally:
            for i, layer in layers.items():
                self._layers[i] = layer

    def take(self) -> mx.array:
        """Return the outputs of the newest pass, [rows, widest, len(ids) * D], and drop them."""
        outputs = [self._outputs[i] for i in self.ids]
        self._outputs.clear()
        return mx.concatenate(outputs, axis=-1)


class _TappedLayer:
    """Calls a layer and keeps the output; other attributes are the layer's own."""

    def __init__(self, layer: Any, number: int, outputs: dict[int, mx.array]) -> None:
        self._layer = layer
        self._number = number
        self._outputs = outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._layer(*args, **kwargs)
        self._outputs[self._number] = output[0] if isinstance(output, tuple) else output
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)
