"""Image family: a Pillow processor of transformers, and placeholders in prompts."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx
from PIL import Image
from transformers import AutoImageProcessor

from omlx.engine.vision.reader import Features, Seeing
from omlx.engine.vision.spans import ImageSpan, PreparedImage, image_ids
from omlx.errors import BadRequest
from omlx.models.vision.support import MAX_TOKENS

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

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

    def __init__(
        self, directory: Path, config: Mapping[str, Any], tokenizer: TokenizerWrapper
    ) -> None:
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
