"""Requests with images of any kind: python -m lab.fuzz.media --requests 5000 [--salt 1]

Every answer is one of the API: no 500, and memory does not grow.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import httpx
from PIL import Image

from lab.fuzz.campaign import Faults
from omlx.cli.main import run_process
from omlx.models.pool.footprint import footprint
from tests.models.vision.loaded import picture
from tests.server.media.pictures import QWEN, SMOL, file_of, seeing, uri
from tests.server.running import PATIENCE_S, TARGET, Running

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
SIZES = ((1, 1), (1, 200), (37, 91), (64, 64), (300, 200))


@cache
def bomb() -> bytes:
    """900 megapixels of one colour in 109 kB."""
    return file_of(Image.new("1", (30_000, 30_000)))


def valid(random: Random) -> bytes:
    """An image of any mode, size and format, some of them animated, some with EXIF data."""
    image = picture(*random.choice(SIZES), random.randrange(20))
    format = random.choice(FORMATS)
    modes = ["RGB", "L"]
    if format == "PNG":
        modes += ["1", "P", "RGBA", "LA", "I;16"]
    if format == "JPEG":
        modes.append("CMYK")
    mode = random.choice(modes)
    image = image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)
    options: dict[str, Any] = {}
    if format in ("GIF", "WEBP") and random.random() < 0.5:
        options = {"save_all": True, "append_images": [image.copy()] * 3}
    elif random.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = random.choice([0, 3, 6, 8, 9, 65_535])
        options = {"exif": exif}
    return file_of(image, format, **options)


def file(random: Random) -> bytes:
    data = bytearray(valid(random))
    match random.randrange(8):
        case 0:
            return bomb()
        case 1:
            return bytes(data[: random.randrange(len(data))])
        case 2 | 3:
            for _ in range(random.randrange(1, 9)):
                data[random.randrange(min(len(data), 200))] = random.randrange(256)
        case 4:
            return random.randbytes(random.randrange(400))
        case 5:  # the header of a PNG without pixels
            data = bytearray(file_of(picture(9, 9)))
            data[16:24] = bytes(8)
    return bytes(data)


def source(random: Random) -> Any:
    """What names an image."""
    data = file(random)
    match random.randrange(12):
        case 0:
            return uri(uri(data).encode())
        case 1:
            return random.choice(
                ["file:///etc/passwd", "/etc/passwd", "", "data:", "data:,", "C:\\x"]
            )
        case 2:
            return random.choice(["http://127.0.0.1/", "https://[::1]/x", "http://", "http://a b/"])
        case 3:
            return random.choice([None, 5, [], {}, {"url": None}, True])
        case 4:
            return uri(data).replace("=", "").replace("A", random.choice(["A", "%41", "!"]))
    return uri(data, random.choice(["image/png", "text/html", "", "image/svg+xml"]))


def part(random: Random, path: str) -> Any:
    given = source(random)
    if path.startswith("/v1/messages"):
        data = given.partition(",")[2] if isinstance(given, str) else given
        kinds = ({"type": "base64", "data": data}, {"type": "url", "url": given}, given)
        return {"type": "image", "source": random.choice(kinds)}
    kind = "input_image" if path == "/v1/responses" else "image_url"
    wrapped = random.choice([given, {"url": given, "detail": random.choice(["low", "x", None, 5])}])
    return {"type": kind, "image_url": wrapped}


def small(path: str) -> Any:
    """An image of a few bytes, which is none."""
    if path.startswith("/v1/messages"):
        return {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    kind = "input_image" if path == "/v1/responses" else "image_url"
    return {"type": kind, "image_url": "data:;base64,AAAA"}


def text(random: Random, path: str) -> Any:
    kind = "input_text" if path == "/v1/responses" else "text"
    return {"type": kind, "text": random.choice(["What?", "<image>", "<|image_pad|>", ""])}


def body(random: Random, path: str) -> dict[str, Any]:
    """A request for `path`, with images in one of its messages or in a tool result."""
    if random.random() < 0.01:
        parts = [random.choice([text(random, path), small(path)])] * 10_000
    else:
        parts = [random.choice((part, text))(random, path) for _ in range(random.randrange(1, 5))]
    asked: dict[str, Any] = {"model": random.choice((QWEN, SMOL, SMOL, TARGET))}
    messages: list[Any] = [{"role": random.choice(("user",) * 6 + ("system",)), "content": parts}]
    if random.random() < 0.3:
        messages = [{"role": "user", "content": "Look."}, *_result(path, parts)]
    key = "input" if path == "/v1/responses" else "messages"
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {**asked, key: messages, limit: 2, "stream": random.random() < 0.3}


def _result(path: str, parts: list[Any]) -> list[Any]:
    """A call, and a result of these parts."""
    if path == "/v1/responses":
        call = {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"}
        return [call, {"type": "function_call_output", "call_id": "c", "output": parts}]
    if path == "/v1/chat/completions":
        function = {"name": "view", "arguments": "{}"}
        call = {"id": "c", "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": "c", "content": parts}
        return [{"role": "assistant", "tool_calls": [call]}, result]
    call = {"type": "tool_use", "id": "c", "name": "view", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": parts}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


@dataclass
class MediaCampaign:
    """`statuses` with the codes of errors. `peak_bytes`: the largest memory after a request."""

    running: Running
    salt: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self._random = Random(self.salt)
        self._faults = Faults()
        logging.getLogger("omlx").addHandler(self._faults)

    def run(self, requests: int) -> None:
        """Raises AssertionError for a fault of the server's."""
        with httpx.Client(base_url=self.running.url, timeout=PATIENCE_S) as http:
            for _ in range(requests):
                path = self._random.choice(PATHS)
                sent = body(self._random, path)
                answer = http.post(path, json=sent)
                shown = f"{answer.text[:400]} {json.dumps(sent)[:4000]}"
                assert answer.status_code < 500, shown
                assert not self._faults.found, f"{shown}\n{self._faults.found[0]}"
                outcome = str(answer.status_code)
                if answer.status_code >= 400:
                    outcome += f" {answer.json()['error']['code']}"
                self.statuses[outcome] += 1
                self.peak_bytes = max(self.peak_bytes, footprint())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz.media")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--salt", type=int, default=0, help="other requests")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, seeing(Path(folder), QWEN, SMOL) as running:
        campaign = MediaCampaign(running, asked.salt)
        campaign.run(max(20, asked.requests // 10))
        before = footprint()
        campaign.run(asked.requests)
        grown = (footprint() - before) / 2**20
        for outcome, count in sorted(campaign.statuses.items()):
            print(count, outcome)  # noqa: T201
        peak = campaign.peak_bytes / 2**20
        print(f"memory grew by {grown:.1f} MiB; {peak:.0f} MiB at most")  # noqa: T201
        sys.stdout.flush()
        os._exit(0)  # as the server itself leaves: see docs/log.md


if __name__ == "__main__":
    run_process(main)
