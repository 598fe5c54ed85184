"""An eye: what a server must know of images before any weights are read.

    bytes ─ image_name ─► image ─ patches ─► PreparedImage
    rendered prompt ─ expand ─► text ─ tokenizer ─► ids ─ place ─► ids and spans of the request

Made of the JSON files of a model directory. Needs Pillow, which the caller's images are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from omlx.engine.image import ImageSpan, PreparedImage, image_ids
from omlx.errors import BadRequest

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TOKENS: Final = 1280
"""Tokens of one image at most, where a family lets images have many: 1 megapixel for Qwen."""


class Eye(Protocol):
    """All methods but `place` take `most`, which bounds the tokens of one image where a family's
    images differ in size. Thread-safe; modifies nothing.
    """

    @property
    def marker(self) -> str:
        """The text that stands for an image in a rendered prompt."""
        ...

    @property
    def text_marker(self) -> str | None:
        """What stands for an image in the text of a message where chat templates know texts alone;
        None: they know parts, and write the marker.
        """
        ...

    def image_name(self, data: bytes, most: int = MAX_TOKENS) -> str:
        """Return a name that no other file and no other preprocessing has."""
        ...

    def tokens(self, width: int, height: int, most: int = MAX_TOKENS) -> int:
        """Return how many image tokens an image of so many pixels becomes."""
        ...

    def patches(self, image: Image, name: str, most: int = MAX_TOKENS) -> PreparedImage:
        """Resize and cut an RGB image. Raises BadRequest for a shape that the family cannot."""
        ...

    def expand(self, text: str, images: Sequence[PreparedImage]) -> str:
        """Replace each marker by the tokens of an image, in order.

        Raises BadRequest if there are not as many markers as images.
        """
        ...

    def place(
        self, ids: Sequence[int], images: Sequence[PreparedImage]
    ) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
        """Return the ids of an expanded prompt with those of images, and where images are.

        Raises BadRequest if there are not as many image tokens as features.
        """
        ...


def placed(
    ids: Sequence[int], images: Sequence[PreparedImage], token_id: int
) -> tuple[tuple[int, ...], tuple[ImageSpan, ...]]:
    """Give the ids `token_id` to the features of images, in order. See `Eye.place`."""
    if ids.count(token_id) != sum(image.features for image in images):
        raise BadRequest("image.marker", param="messages")
    tokens, spans, start = list(ids), list[ImageSpan](), 0
    for image in images:
        at = 0
        while at < image.features:
            start = tokens.index(token_id, start)
            stop, most = start + 1, min(len(tokens), start + image.features - at)
            while stop < most and tokens[stop] == token_id:
                stop += 1
            spans.append(ImageSpan(start, stop, image.name, at, image.grid))
            tokens[start:stop] = image_ids(image.name, at, at + stop - start)
            at, start = at + stop - start, stop
    return tuple(tokens), tuple(spans)
