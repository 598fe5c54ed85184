"""Files to pixels: every mode, turned and on white."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from omlx.errors import BadRequest
from tests.models.vision.loaded import picture
from tests.server.media.pictures import file_of

pytestmark = pytest.mark.needs_extra


def decoded(data: bytes) -> Any:
    from omlx.server.request.media.decode import decode  # noqa: PLC0415 — needs the extra

    return decode(data, "image")


@pytest.mark.parametrize(
    ("format", "mode"),
    [
        *(("PNG", mode) for mode in ("1", "L", "P", "RGB", "RGBA", "LA")),
        *(("JPEG", mode) for mode in ("L", "RGB", "CMYK")),
        *(("WEBP", mode) for mode in ("RGB", "RGBA")),
        ("GIF", "P"),
    ],
)
def test_every_mode_becomes_rgb(format: str, mode: str) -> None:
    image = decoded(file_of(picture(40, 30).convert(mode), format))
    assert (image.mode, image.size) == ("RGB", (40, 30))


def test_grey_of_16_bits_keeps_its_shades() -> None:
    shades = np.array([[0, 1 << 14, 1 << 15, (1 << 16) - 1]], dtype=np.uint16)
    image = decoded(file_of(Image.fromarray(shades)))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 64, 128, 255]


def test_transparency_is_white() -> None:
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 255))
    image.putpixel((1, 0), (200, 0, 0, 0))
    shown = decoded(file_of(image))
    assert [shown.getpixel((x, 0)) for x in (0, 1)] == [(200, 0, 0), (255, 255, 255)]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_they_say(orientation: int) -> None:
    image = Image.new("RGB", (32, 16), "black")
    image.paste("white", (0, 0, 16, 8))  # the corner at the top left
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = decoded(file_of(image, "PNG", exif=exif))
    corners = {1: "tl", 2: "tr", 3: "br", 4: "bl", 5: "tl", 6: "tr", 7: "br", 8: "bl"}
    assert turned.size == ((32, 16) if orientation < 5 else (16, 32))
    width, height = turned.size
    places = {"tl": (2, 2), "tr": (width - 3, 2), "bl": (2, height - 3)}
    places["br"] = (width - 3, height - 3)
    bright = [name for name, place in places.items() if turned.getpixel(place)[0] > 128]
    assert bright == [corners[orientation]]


def test_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for format in ("GIF", "WEBP", "PNG"):
        data = file_of(frames[0], format, save_all=True, append_images=frames[1:])
        red, _, blue = decoded(data).getpixel((4, 4))
        assert (red > 200, blue < 50) == (True, True)


def test_a_header_that_says_nothing_is_refused() -> None:
    data = bytearray(file_of(picture(8, 8)))
    data[16:24] = bytes(8)  # width and height of the header
    with pytest.raises(BadRequest) as refused:
        decoded(bytes(data))
    assert refused.value.code in ("image.broken", "image.format", "image.sides")
