from __future__ import annotations

import json

from omlx.server.http import sse

ENDS_OF_LINES = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def test_a_frame_is_one_line_however_it_is_split() -> None:
    said = {"type": "x", "text": f"é{ENDS_OF_LINES}日本😀"}
    name, line, end = sse.named(said).decode().splitlines()
    assert (name, json.loads(line.removeprefix("data: ")), end) == ("event: x", said, "")
