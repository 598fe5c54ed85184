"""Images and files in messages, before they are read: plain parts, which can be stored as JSON.

{"type": "image", "url": a data URI or an address, "detail": "low" or another or none,
 "kind": its type in the body, "field": its place there}
{"type": "file", "url": a data URI, or None for a file that is elsewhere, "name": its name,
 "kind" and "field" as above}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from omlx.server.http.errors import field_error
from omlx.server.request.dialect import Json

TEXT: Final = "text"
IMAGE: Final = "image"
IMAGES: Final = frozenset({IMAGE, "image_url", "input_image"})
"""Types of parts that are images, in any dialect."""
FILE: Final = "file"
FILES: Final = frozenset({FILE, "document", "input_file"})
_SHOWN: Final = 200
"""Characters of a file's name that the model sees."""
MEDIA: Final = IMAGES | {"input_audio", "input_video", "video_url", "audio_url"}


def image_part(kind: str, url: object, detail: str | None, field: str) -> Json:
    """Raises BadRequest if there is neither a data URI nor an address."""
    if not isinstance(url, str):
        raise field_error("image.source", field)
    return {"type": IMAGE, "url": url, "detail": detail, "kind": kind, "field": field}


def file_part(kind: str, data: object, name: object, field: str, media_type: object = "") -> Json:
    """`data`: a data URI, base64 alone, or anything else for a file that is not in the body."""
    url = data if isinstance(data, str) and data else None
    if url is not None and url[:5].lower() != "data:":
        url = f"data:{media_type};base64,{url}"
    shown = " ".join(str(name or kind).split())[:_SHOWN]
    return {"type": FILE, "url": url, "name": shown, "kind": kind, "field": field}


def images_of(message: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the image parts of a message."""
    content = message.get("content")
    if isinstance(content, list):
        yield from (part for part in content if part["type"] == IMAGE)


def shows_images(message: Mapping[str, Any]) -> bool:
    return any(True for _ in images_of(message))


def text_part(text: str) -> Json:
    return {"type": TEXT, "text": text}


def content_of(parts: Iterable[Json], between: str = "") -> str | list[Json]:
    """Return one text where all parts are texts; else the parts, neighbouring texts joined."""
    joined: list[Json] = []
    for kind, run in groupby(parts, itemgetter("type")):
        if kind == TEXT:
            joined.append(text_part(between.join(part["text"] for part in run)))
        else:
            joined += run
    if any(part["type"] != TEXT for part in joined):
        return joined
    return joined[0]["text"] if joined else ""
