"""What an image part names: bytes in a data URI, or an address."""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import unquote_to_bytes

from omlx.errors import BadRequest
from omlx.server.http.errors import field_error

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
