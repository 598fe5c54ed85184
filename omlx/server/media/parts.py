"""Images in messages, before a model is known: plain parts, which can be stored as JSON.

{"type": "image", "url": a data URI or an address, "detail": "low" or another or none,
 "kind": its type in the body, "field": its place there}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from omlx.server.dialect import Json
from omlx.server.errors import field_error

IMAGE: Final = "image"
IMAGES: Final = frozenset({IMAGE, "image_url", "input_image"})
"""Types of parts that are images, in any dialect."""
MEDIA: Final = IMAGES | {"input_audio", "input_video", "video_url", "audio_url"}


def image_part(kind: str, url: object, detail: str | None, field: str) -> Json:
    """Raises BadRequest if there is neither a data URI nor an address."""
    if not isinstance(url, str):
        raise field_error("image.source", field)
    return {"type": IMAGE, "url": url, "detail": detail, "kind": kind, "field": field}


def images_of(message: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the image parts of a message."""
    content = message.get("content")
    if isinstance(content, list):
        yield from (part for part in content if part["type"] == IMAGE)


def shows_images(message: Mapping[str, Any]) -> bool:
    return any(True for _ in images_of(message))


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def content_of(parts: Iterable[Json], between: str = "") -> str | list[Json]:
    """Return one text where all parts are texts; else the parts, neighbouring texts joined."""
    joined: list[Json] = []
    for kind, run in groupby(parts, itemgetter("type")):
        if kind == IMAGE:
            joined += run
        else:
            joined.append(text_part(between.join(part["text"] for part in run)))
    if any(part["type"] == IMAGE for part in joined):
        return joined
    return joined[0]["text"] if joined else ""
