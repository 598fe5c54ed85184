"""Image family: a Pillow processor of transformers, placeholders in prompts, and mlx-vlm's tower.

The tower is computed layer by layer: calling it only builds a graph; noted outputs of layers allow
evaluating it step by step.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from PIL import Image
from transformers import AutoImageProcessor

from omlx.engine.device.gpu import attention_kernels
from omlx.engine.device.model import Model, tapped, weight_bytes
from omlx.engine.step.prefill import SCORE_COPIES, VECTOR_QUERIES, has_fused_kernel
from omlx.engine.vision.reader import Features, Looking, Seeing, Vision
from omlx.engine.vision.spans import ImageSpan, PreparedImage, TowerFacts, image_ids
from omlx.errors import BadRequest
from omlx.models.catalog.config import text_config
from omlx.models.vision.support import MAX_TOKENS
from omlx.text.tokens import Tokenizer

Arrays = Mapping[str, Any]
"""Results of an image processor: numpy arrays, or mlx arrays for the tower."""


class VisionFamily(ABC):
    """Preprocessing and prompt text of images, before any weights are read.

    `token` is repeated per feature. `text_marker` represents an image in messages if chat templates
    support text only; None: templates support parts, and write `marker`. `most` limits the tokens
    of one image in families with variable sizes. Thread-safe; modifies nothing.
    """

    token: ClassVar[str]
    text_marker: ClassVar[str | None] = None

    def __init__(self, directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.vision = config["vision_config"]
        self.processor = self._read_processor(directory)
        self.token_id: int = tokenizer.convert_tokens_to_ids(self.token)
        settings = {**self.settings(), "family": type(self).__name__}
        self._settings = json.dumps(settings, sort_keys=True, default=str).encode()

    @property
    def marker(self) -> str:
        return self.token

    def image_name(self, data: bytes, most: int = MAX_TOKENS) -> str:
        """Return a hash unique to file content and preprocessing."""
        return sha256(b"%b\0%d\0%b" % (sha256(data).digest(), most, self._settings)).hexdigest()

    def patches(self, image: Image.Image, name: str, most: int = MAX_TOKENS) -> PreparedImage:
        """Resize and cut an RGB image. Raises BadRequest for an unsupported shape."""
        try:
            arrays = self.arrays(image, most)
        except ValueError as error:  # Qwen's processors refuse aspect ratios above 200
            detail = " ".join(str(error).split())
            raise BadRequest("image.shape", param="messages", detail=detail) from error
        return PreparedImage(
            name=name,
            arrays=arrays,
            patches=self.patch_count(arrays),
            features=self.expansion(arrays).count(self.token),
            grid=self.grid(arrays),
            nbytes=sum(getattr(array, "nbytes", 0) for array in arrays.values()),
        )

    def expand(self, text: str, images: Sequence[PreparedImage]) -> str:
        """Replace each marker by the tokens of an image, in order.

        Raises BadRequest unless markers and images are equal in number.
        """
        parts = text.split(self.marker)
        if len(parts) != len(images) + 1:
            raise BadRequest("image.marker", param="messages")
        shown = [self.expansion(image.arrays) for image in images]
        pairs = zip(parts, [*shown, ""], strict=True)
        return "".join(part + image for part, image in pairs)

    def place(
        self, ids: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
        """Return the prompt ids with image ids in place, and the spans of images.

        Raises BadRequest unless image tokens and features are equal in number.
        """
        if ids.count(self.token_id) != sum(image.features for image in images):
            raise BadRequest("image.marker", param="messages")
        tokens, spans, start = list(ids), list[ImageSpan](), 0
        for image in images:
            at = 0
            while at < image.features:
                start = tokens.index(self.token_id, start)
                stop, most = start + 1, min(len(tokens), start + image.features - at)
                while stop < most and tokens[stop] == self.token_id:
                    stop += 1
                spans.append(ImageSpan(start, stop, image.name, at, image.grid))
                tokens[start:stop] = image_ids(image.name, at, at + stop - start)
                at, start = at + stop - start, stop
        return tuple(tokens), tuple(spans)

    # -- per family --------------------------------------------------------------------------------

    def _read_processor(self, directory: Path) -> Any:
        read: Any = AutoImageProcessor.from_pretrained
        return read(str(directory), backend="pil")

    def settings(self) -> Mapping[str, Any]:
        """Return all that the arrays of an image depend on."""
        settings: Mapping[str, Any] = self.processor.to_dict()
        return settings

    def arrays(self, image: Image.Image, most: int) -> dict[str, Any]:
        """Return the tower's inputs for an image of at most `most` tokens."""
        return dict(self.processor(images=[image], return_tensors="np", **self.options(most)))

    def options(self, most: int) -> dict[str, Any]:
        """Return processor options for at most `most` tokens."""
        return {}

    def grid(self, arrays: Arrays) -> tuple[int, int] | None:
        """Return (rows, columns) of features if positions have two axes, else None."""
        return None

    def patch_count(self, arrays: Arrays) -> int:
        """Return the number of patches read by the tower: by default those of square tiles."""
        *_, height, width = arrays["pixel_values"].shape
        tiles = arrays["pixel_values"].size // (3 * height * width)
        size = self.vision.get("patch_size", 14)
        size = size[0] if isinstance(size, list) else size
        return int(max(1, tiles * (height // size) * (width // size)))

    @abstractmethod
    def expansion(self, arrays: Arrays) -> str:
        """Return the text of an image: `token` per feature, with surrounding markers."""

    def spec(self, model: Any) -> Seeing:
        """Return how the text model reads features."""
        return Seeing(self.token_id)

    @abstractmethod
    def features(self, vlm: Any, arrays: Arrays) -> Features:
        """Compute features with tower and projector of mlx-vlm's model, lazily."""


def single(rows: mx.array) -> Features:
    """Return features from arrays [..., features, D]."""
    return Features(rows.reshape(-1, rows.shape[-1]))


ACTIVATIONS = 24
"""Bytes of activations per byte of a patch's hidden state, at most."""

WEIGHTS_PER_ATTENDED = 6
"""Widths of attended patches that double the work of a layer.

A patch is multiplied with 12 width² weights, and with 2 width values of each attended patch.
"""


class BorrowedTower:
    """A `Tower` around `vlm`, mlx-vlm's model without its language model."""

    def __init__(self, family: VisionFamily, vlm: nn.Module, facts: TowerFacts) -> None:
        self.facts = facts
        self._family = family
        self._vlm = vlm

    def look(self, image: PreparedImage) -> Looking:
        dtype = _dtype(self._vlm)
        layers = _layers(self._vlm)
        arrays = {name: _array(value, dtype) for name, value in image.arrays.items()}
        with tapped(layers, range(len(layers))) as outputs:
            features = self._family.features(self._vlm, arrays)
        steps = [output for _, output in outputs]
        del arrays, outputs
        for _ in range(self.facts.steps - 1):
            yield steps.pop(0) if steps else features.rows
        return Features(features.rows, tuple(features.marks))


def open_vision(family: VisionFamily, vlm: nn.Module, model: Model) -> Vision:
    spec, body = family.spec(model), body_of(model)
    return Vision(model, body, spec, BorrowedTower(family, vlm, _facts(family, vlm, model, spec)))


def body_of(model: Any) -> Any:
    """Return the part of a text model with embeddings and layers."""
    whole = model.language_model if "language_model" in model else model
    return whole.model


def _facts(family: VisionFamily, vlm: nn.Module, model: Model, spec: Seeing) -> TowerFacts:
    dtype = _dtype(vlm)
    hidden = int((text_config(family.config) or family.config).get("hidden_size", 4096))
    # Qwen2-VL calls its output hidden
    names = [name for name in ("embed_dim", "width", "hidden_size") if name in family.vision]
    width = int(family.vision[names[0]]) if names else 1024
    return TowerFacts(
        steps=max(1, len(_layers(vlm))),
        patch_cost=weight_bytes(cast(Model, vlm)) / max(1.0, _active_bytes(family.config, model)),
        attention=1 / (WEIGHTS_PER_ATTENDED * width),
        attended=_tile_patches(family.vision),
        patch_bytes=ACTIVATIONS * width * dtype.size,
        feature_bytes=hidden * dtype.size * (1 + spec.marks),
        pair_bytes=_pair_bytes(family.vision, width, dtype.size),
        whole=spec.open_layers != "none",
    )


def _active_bytes(config: Mapping[str, Any], model: Model) -> float:
    """Return the bytes of weights multiplied per token: active experts only in a mixture."""
    text = text_config(config) or config
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    experts = next((text[name] for name in names if isinstance(text.get(name), int)), None)
    chosen = text.get("num_experts_per_tok")
    return weight_bytes(model) * (chosen / experts if experts and chosen else 1.0)


def _pair_bytes(vision: Mapping[str, Any], width: int, itemsize: int) -> int:
    """Return bytes of attention scores per pair of patches; 0 with a fused kernel."""
    heads = int(vision.get("num_heads") or vision.get("num_attention_heads") or 16)
    dim = width // heads
    fused = has_fused_kernel(VECTOR_QUERIES + 1, 1, dim, dim, attention_kernels())
    return 0 if fused else SCORE_COPIES * heads * itemsize


def _tile_patches(vision: Mapping[str, Any]) -> int:
    """Return the maximum of mutually attending patches: those of a tile, if its size is fixed."""
    sides = [vision.get(name) for name in ("image_size", "patch_size")]
    size, patch = (side[0] if isinstance(side, list) else side for side in sides)
    return int(size // patch) ** 2 if size and patch else TowerFacts().attended


def _layers(vlm: nn.Module) -> list[nn.Module]:
    """Return the longest list of modules: the layers of the tower."""
    lists = [
        value
        for _, module in vlm.named_modules()
        for value in module.values()
        if isinstance(value, list) and value and isinstance(value[0], nn.Module)
    ]
    return max(lists, key=len, default=[])


def _dtype(vlm: nn.Module) -> mx.Dtype:
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(vlm.parameters()))
    floats = (array.dtype for _, array in parameters if mx.issubdtype(array.dtype, mx.floating))
    return next(floats, mx.float32)


def _array(value: Any, dtype: mx.Dtype) -> Any:
    if isinstance(value, Iterable) and not hasattr(value, "dtype"):
        return value
    array = mx.array(value)
    return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) else array
