"""Bodies of requests before they are parsed: judged by what is outside their strings.

A parser holds Python's lock, so the event loop waits for it. A body of 32 MB has room for a million
objects, which take seconds to build; counting them takes a tenth of a second, in slices.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from math import isinf
from typing import Any, Final, TypeAlias, TypeVar

from starlette.requests import Request

from omlx.errors import BadRequest, OmlxError
from omlx.machine import trim
from omlx.server.http.connection import NamedModel, note

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]
"""An object of JSON."""

LIMITS: Final = {b"{": 25_000, b":": 100_000, b",": 1_200_000}
"""Most objects, fields of objects and values in one body. A prompt of a million token ids fits."""
_CODES: Final = {b"{": "request.objects", b":": "request.fields", b",": "request.values"}
LARGE_BYTES: Final = 256 << 10
"""Bodies of this size are parsed off the event loop."""
_SLICE_BYTES: Final = 256 << 10
_TRIM_S: Final = 0.5
_WHITE_SPACE: Final = b" \t\r\n"
_LARGE_NUMBER: Final = re.compile(
    rb"(?<![-+.\deE])-?(?=\d{309}|[\d.]++[eE]\+?\d{3})(?P<number>[-+.\deE]++)"
)
"""A number that may exceed the range of floats."""
_MODEL: Final = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')


def trim_soon() -> None:
    """Return the memory of a large body to the system once the request has ended."""
    loop = asyncio.get_running_loop()
    loop.call_later(_TRIM_S, loop.run_in_executor, None, trim)


async def read_body(request: Request, parse: Callable[[bytes], T]) -> T:
    """Read the body and parse it, a large one off the event loop. Raises what `parse` does.

    Notes the model that an invalid body names.
    """
    body = await request.body()
    try:
        if len(body) < LARGE_BYTES:
            return parse(body)
        return await asyncio.to_thread(parse, body)
    except OmlxError:
        named = _MODEL.search(body)
        if named is not None:
            note(request.scope, NamedModel(named[1].decode(errors="replace")))
        raise


def outside_strings(body: bytes) -> bytes:
    """Return what is outside the strings of a JSON text, without white space.

    Raises BadRequest as soon as a count exceeds its limit. Text that is not JSON gives anything.
    """
    counts: Counter[bytes] = Counter()
    kept = []
    in_string, carried = False, b""
    for start in range(0, len(body), _SLICE_BYTES):
        piece = carried + body[start : start + _SLICE_BYTES]
        carried = b""
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # an escape that continues in the next one
            piece, carried = piece[:-1], piece[-1:]
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[int(in_string) :: 2]).translate(None, _WHITE_SPACE)
        in_string ^= len(parts) % 2 == 0
        for mark, limit in LIMITS.items():
            counts[mark] += outside.count(mark)
            if counts[mark] > limit:
                raise BadRequest(_CODES[mark], limit=limit)
        kept.append(outside)
    return b"".join(kept)


def check_finite(outside: bytes) -> None:
    """Raise BadRequest for NaN and infinite numbers, which the parser accepts in unknown fields: an
    answer that repeats them would not be JSON.

    `outside`: of `outside_strings`. Only these numbers are spelled with N or I.
    """
    for name in (b"N", b"I"):
        if name in outside:
            raise BadRequest("request.json", detail="NaN, Infinity")
    for match in _LARGE_NUMBER.finditer(outside):
        number = match["number"]
        if number.strip(b"-0123456789") and isinf(float(number)):
            raise BadRequest("request.json", detail=match[0][:40].decode())
