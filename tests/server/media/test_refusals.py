"""Images that are refused, each with its code; models that do not see, and say so."""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from omlx.errors import Reason
from omlx.machine import extra_command
from omlx.models.vision import support
from omlx.server.request.content import MAX_BYTES
from omlx.server.request.media.images import MAX_IMAGES
from omlx.settings.schema import Settings
from tests.models.vision.loaded import picture
from tests.models.vision.test_support import drop_tensors
from tests.server.dialects import user
from tests.server.media.pictures import QWEN, asking, file_of, seeing, some_uri, uri
from tests.server.running import TARGET, Running

pytestmark = pytest.mark.needs_extra

GOOD = file_of(picture(40, 60))


def refused(http: httpx.Client, *parts: Any, model: str = QWEN) -> tuple[str, str | None]:
    """Code and field of the error."""
    body = {"model": model, "messages": [asking("What?", *parts)], "max_tokens": 2}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["code"], error["param"]


def bomb() -> bytes:
    """900 megapixels of one colour in 109 kB, of a bit each: Pillow would take a byte for each."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + 30_000 // 8) * 30_000))
    parts = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


PLACE = "messages[0].content[1]"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", "image.source"),
        ("/etc/passwd", "image.source"),
        ("data:image/png,abc", "image.source"),
        ("data:image/png;base64", "image.source"),
        ("data:;base64,!!!!", "image.broken"),
        ("http://example.com/cat.png", "image.url_off"),
        ("https://example.com/cat.png", "image.url_off"),
        (uri(b""), "image.format"),
        (uri(b"GIF"), "image.format"),
        (uri(b"%PDF-1.4 no image"), "image.format"),
        (uri(some_uri().encode()), "image.format"),
        (uri(file_of(picture(9, 9), "BMP"), "image/png"), "image.format"),
        (uri(file_of(picture(9, 9), "TIFF"), "image/png"), "image.format"),
        (uri(GOOD[: len(GOOD) // 2]), "image.broken"),
        (uri(b"\0" * (MAX_BYTES + 1)), "image.too_large"),
        (uri(file_of(Image.new("L", (2000, 9)))), "image.sides"),
        (uri(file_of(Image.new("1", (16_385, 200)))), "image.sides"),
    ],
    ids=lambda value: value[:30],
)
def test_each_refusal_has_its_code(http: httpx.Client, url: str, code: str) -> None:
    assert refused(http, url) == (code, PLACE)


def test_a_bomb_is_refused_by_its_pixels(http: httpx.Client) -> None:
    assert refused(http, uri(bomb())) == ("image.pixels", PLACE)


def test_too_many_images_are_refused_before_any_is_decoded(http: httpx.Client) -> None:
    assert refused(http, *["data:;base64,!"] * (MAX_IMAGES + 1)) == ("image.too_many", "messages")


def test_a_typed_placeholder_is_no_image(http: httpx.Client, seer: Running) -> None:
    assert refused(http, some_uri(), "<|image_pad|>") == ("image.marker", "messages")
    body = {"model": QWEN, "messages": [asking("<|image_pad|>")], "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert seer.engine.newest is not None
    assert not seer.engine.newest.spans


def test_images_are_for_users_and_tools(http: httpx.Client) -> None:
    messages = [asking(some_uri(), role="system"), asking("So?")]
    answer = http.post("/v1/chat/completions", json={"model": QWEN, "messages": messages})
    assert answer.json()["error"]["code"] == "image.role"


def test_no_image_in_instructions_of_other_dialects(http: httpx.Client) -> None:
    image = {"type": "input_image", "image_url": some_uri()}
    items = [{"role": "developer", "content": [image]}, {"role": "user", "content": "So?"}]
    answer = http.post("/v1/responses", json={"model": QWEN, "input": items})
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("image.role", "input[0].content[0]")
    source = {"type": "base64", "media_type": "image/png", "data": some_uri().partition(",")[2]}
    body = {
        "model": QWEN,
        "max_tokens": 2,
        "system": [{"type": "image", "source": source}],
        "messages": user("So?"),
    }
    error = http.post("/v1/messages", json=body).json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "image.role")


def test_a_model_without_sight_is_named(http: httpx.Client) -> None:
    body = {"model": TARGET, "messages": [asking(some_uri())], "max_tokens": 2}
    error = http.post("/v1/chat/completions", json=body).json()["error"]
    assert (error["code"], error["params"]["model"]) == ("image.model", TARGET)
    assert "text model" in error["message"]


def test_errors_speak_the_dialect_of_messages(http: httpx.Client) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "x", "data": "AAAA"}}
    body = {"model": QWEN, "max_tokens": 2, "messages": [{"role": "user", "content": [image]}]}
    answer = http.post("/v1/messages", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["code"] == "image.format"
    image["source"] = {"type": "file", "file_id": "file_1"}
    assert http.post("/v1/messages", json=body).json()["error"]["code"] == "image.source"


def test_other_streams_go_on(http: httpx.Client, seer: Running) -> None:
    body = {"model": QWEN, "messages": [asking("Hello")], "max_tokens": 60, "temperature": 0}
    alone = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    text = ""
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        lines = stream.iter_lines()
        for line in lines:
            if len(text) < 10:
                with httpx.Client(base_url=seer.url, timeout=60) as other:
                    refused(other, uri(GOOD[:99]))
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                text += delta.get("content") or ""
    assert text == alone["content"]


def test_nothing_of_an_image_is_logged(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good, broken = some_uri(seed=9), uri(GOOD[:200])
    body = {"model": QWEN, "messages": [asking("Look", good)], "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    refused(http, broken)
    written = " ".join(str(record.__dict__) for record in caplog.records)
    for url in (good, broken):
        data = url.partition(",")[2]
        assert data[:24] not in written
        assert data[-24:] not in written


@contextmanager
def client(folder: Path, settings: Settings | None = None) -> Iterator[httpx.Client]:
    with seeing(folder, QWEN, settings=settings) as running:
        yield running.http


def check(http: httpx.Client, reason: Reason) -> None:
    """Check that an image is refused for a reason, and that text is answered."""

    def ask(*parts: str) -> Any:
        body = {"model": QWEN, "messages": [asking(*parts)], "max_tokens": 2}
        return http.post("/v1/chat/completions", json=body)

    refused = ask("What?", some_uri())
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("image.model", "messages[0].content[1]")
    assert error["params"]["model"] == QWEN
    assert reason.message in error["message"]
    assert ask("What?").status_code == 200
    (card,) = (card for card in http.get("/v1/models").json()["data"] if card["id"] == QWEN)
    assert card["input_modalities"] == ["text"]


def test_a_directory_without_vision_weights(tmp_path: Path) -> None:
    with client(tmp_path) as http:
        drop_tensors(tmp_path / QWEN, "vision_tower")
        check(http, Reason("vision.off.no_weights"))


def test_the_extra_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(tmp_path) as http:
        monkeypatch.setattr(support, "_PACKAGES", ("no_such_package",))
        reason = Reason("vision.off.extra", {"command": extra_command("vision")})
        assert "pip install" in reason.message
        check(http, reason)


def test_the_setting_is_off(tmp_path: Path) -> None:
    with client(tmp_path, Settings(vision=False)) as http:
        check(http, Reason("vision.off.setting"))
