"""Bodies judged before they are parsed: what is outside their strings, and how much of it."""

from __future__ import annotations

import asyncio
import json
import threading
from random import Random

import httpx
import pytest
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Message

from omlx.errors import BadRequest
from omlx.server.http import body, sse
from omlx.server.http.body import LARGE_BYTES, LIMITS, check_finite, outside_strings, read_body
from tests.server.dialects import user
from tests.server.running import TARGET

CHAT = "/v1/chat/completions"


def char_by_char(text: bytes) -> bytes:
    """`outside_strings` by its definition."""
    kept, in_string, escaped = bytearray(), False, False
    for char in text:
        if not in_string and char not in b'" \t\r\n':
            kept.append(char)
        if escaped:
            escaped = False
        elif in_string and char == ord("\\"):
            escaped = True
        elif char == ord('"'):
            in_string = not in_string
    return bytes(kept)


@pytest.mark.parametrize("seed", range(20))
def test_strings_are_left_out_wherever_slices_end(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    for _ in range(100):
        strings = [random.choices('a"\\\n{,:é', k=random.randrange(8)) for _ in range(6)]
        text = json.dumps({"".join(string): ["".join(string), 1, {}] for string in strings})
        monkeypatch.setattr(body, "_SLICE_BYTES", random.choice((1, 2, 3, 7, 1000)))
        assert outside_strings(text.encode()) == char_by_char(text.encode())


@pytest.mark.parametrize(
    "number",
    [
        *("1e308", "1e309", "-1E+400", "1.5e3000", "0e999", "1e-999", "12e3", "0.000001e310"),
        *("1" * 400, "1" * 400 + ".0", "1" * 308 + ".5"),
        *("NaN", "-Infinity", '"NaN 1e400"', "true"),
    ],
)
def test_the_numbers_that_json_cannot_repeat_are_refused(number: str) -> None:
    text = f'{{"a": [{number}, 1]}}'
    try:
        json.dumps(from_json(text), allow_nan=False)
    except ValueError:
        with pytest.raises(BadRequest):
            check_finite(outside_strings(text.encode()))
    else:
        check_finite(outside_strings(text.encode()))


@pytest.mark.parametrize(
    ("mark", "unit", "code"), [(b"{", '{"a":1}', "request.objects"), (b",", "1", "request.values")]
)
def test_a_body_with_too_many_values_is_refused_before_it_is_parsed(
    http: httpx.Client, mark: bytes, unit: str, code: str
) -> None:
    units = ",".join([unit] * (LIMITS[mark] + 2))
    # It is no JSON, so a parser that saw it would say so.
    answer = http.post(CHAT, content=f'{{"model": "{TARGET}", "messages": [{units}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_too_many_fields_are_refused() -> None:
    fields = ",".join(['"a":1'] * (LIMITS[b":"] + 1))
    with pytest.raises(BadRequest, match="fields"):
        outside_strings(f"{{{fields}}}".encode())


def test_text_is_not_counted(http: httpx.Client) -> None:
    text = "{},:" * LIMITS[b":"]
    content = {"model": TARGET, "messages": user(text)}
    error = http.post(CHAT, json=content).json()["error"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("size", "on_loop"), [(100, True), (LARGE_BYTES, False)])
def test_a_large_body_is_parsed_off_the_event_loop(size: int, on_loop: bool) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b" " * size}

    async def parsed_here() -> bool:
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        thread = await read_body(request, lambda _: threading.get_ident())
        return thread == threading.get_ident()

    assert asyncio.run(parsed_here()) is on_loop


ENDS_OF_LINES = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def test_a_frame_is_one_line_however_it_is_split() -> None:
    said = {"type": "x", "text": f"é{ENDS_OF_LINES}日本😀"}
    name, line, end = sse.named(said).decode().splitlines()
    assert (name, json.loads(line.removeprefix("data: ")), end) == ("event: x", said, "")
