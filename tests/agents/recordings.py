"""Recorded requests of the agents, texts shortened: in `recorded`, a file for each, its first
request and what a later one has behind those messages, two calls and their results or an image.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

RECORDED: Final = Path(__file__).parent / "recorded"
AGENTS: Final = sorted(file.stem for file in RECORDED.glob("*.json"))


def recorded(agent: str, behind: str = "") -> dict[str, Any]:
    """Return the first request of an agent, or that with its `loop` or its `image`."""
    text = (RECORDED / f"{agent}.json").read_text(encoding="utf-8")
    request: dict[str, Any] = json.loads(text)
    messages(request).extend(request[behind] if behind else ())
    return request


def messages(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request, which a test may change."""
    body = request["body"]
    found: list[dict[str, Any]] = body["input" if "input" in body else "messages"]
    return found


def image_of(request: dict[str, Any]) -> bytes:
    """The file in a request with an image."""
    text = json.dumps(request["image"]).partition("iVBORw0KGgo")
    return base64.b64decode(text[1] + text[2].partition('"')[0])
