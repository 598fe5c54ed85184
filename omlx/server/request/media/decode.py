"""Files of strangers to RGB images. Imports Pillow, which is part of the extra.

The format is what the first bytes say, never what a client declares. The header is checked before
anything is decoded: a PNG of 109 kB can hold 900 megapixels.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omlx.errors import BadRequest
from omlx.server.http.errors import field_error

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS: Final = 50_000_000
"""Decoded, 150 MB as RGB, and 600 MB with transparency while it is removed."""
MAX_SIDE: Final = 16_384
MAX_RATIO: Final = 200
"""Ratio of the sides — the preprocessing of Qwen-VL refuses more."""

Image.MAX_IMAGE_PIXELS = None  # `_check_size` allows less, and warns nowhere


def decode(data: bytes, field: str) -> Image.Image:
    """Return the first frame as RGB, turned as its EXIF data says, transparency on white.

    Raises BadRequest about `field` for unknown formats, broken files, and for sizes beyond the
    limits.
    """
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
        _check_size(image, field)
        image.load()
        return _rgb(ImageOps.exif_transpose(image))
    except BadRequest:
        raise
    except UnidentifiedImageError as error:
        raise field_error("image.format", field, formats=", ".join(FORMATS)) from error
    except Exception as error:  # of any type: decoders read bytes of strangers
        raise field_error("image.broken", field) from error


def _check_size(image: Image.Image, field: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise field_error("image.pixels", field, width=width, height=height, limit=MAX_PIXELS)
    short, long = sorted(image.size)
    if short < 1 or long > MAX_SIDE or long > MAX_RATIO * short:
        limits = {"side": MAX_SIDE, "ratio": MAX_RATIO}
        raise field_error("image.sides", field, width=width, height=height, **limits)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        grey = np.asarray(image, dtype=np.int64) >> 8
        image = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")
