"""Images and files in messages, before they are read: plain parts, which can be stored as JSON.

{"type": "image", "url": a data URI or an address, "detail": "low" or another or none,
 "kind": its type in the body, "field": its place there}
{"type": "file", "url": a data URI, or None for a file that is elsewhere, "name": its name,
 "kind" and "field" as above}
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from omlx.errors import BadRequest, Reason
from omlx.server.http.body import Json
from omlx.server.http.errors import field_error

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


NOTES: Final[Mapping[str, str]] = {
    kind: f"[{kind}: left out, only text can be read here]" for kind in MEDIA | FILES
}
"""By type of a part, what the model reads in its place."""


def result_warning(field: str, kind: str) -> Reason:
    return Reason("content.media_in_result", {"field": field, "type": kind})


MAX_BYTES: Final = 20 << 20
"""Of one file."""
_DATA: Final = "data:"
_WEB: Final = ("http://", "https://")


def is_address(url: str) -> bool:
    return url[:8].lower().startswith(_WEB)


def data_bytes(url: str, field: str) -> bytes:
    """Return the bytes of a data URI.

    Raises BadRequest for anything else, local paths among them, for text that is not base64, and
    beyond `MAX_BYTES`.
    """
    if url[: len(_DATA)].lower() != _DATA:
        raise field_error("image.source", field)
    start = url.find(",") + 1
    if not start or not url[: start - 1].lower().endswith(";base64"):
        raise field_error("image.source", field)
    if (len(url) - start) * 3 // 4 > MAX_BYTES + 2:
        raise too_large(field)
    try:
        data = base64.b64decode(_encoded(url[start:]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise field_error("image.broken", field) from error
    if len(data) > MAX_BYTES:
        raise too_large(field)
    return data


def file_bytes(url: str) -> bytes:
    """Return the bytes of a data URI whose data may also be text with percent signs.

    Raises BadRequest as `data_bytes` does.
    """
    head, comma, data = url.partition(",")
    if not comma or head.lower().endswith(";base64"):
        return data_bytes(url, "")
    if len(data) > MAX_BYTES:
        raise too_large("")
    return unquote_to_bytes(data)


def too_large(field: str) -> BadRequest:
    return field_error("image.too_large", field, limit=MAX_BYTES)


def _encoded(text: str) -> bytes:
    """The base64 of a URI, whose `+` may be written as `%2B`, with the padding that some omit."""
    encoded = unquote_to_bytes(text) if "%" in text else text.encode()
    return encoded + b"=" * (-len(encoded) % 4)
