"""Image files of every kind, and tiny models that see behind a server."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import Registry
from omlx.server.request.media.images import UrlReader
from omlx.settings.schema import Settings
from tests.models.vision.folders import save_vlm
from tests.models.vision.loaded import picture
from tests.server.running import DEMO, Running, omlx

QWEN, SMOL = "qwen2_5_vl", "smolvlm"


def file_of(image: Any, format: str = "PNG", **options: Any) -> bytes:
    """An image of Pillow's as a file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def some_uri(width: int = 40, height: int = 60, seed: int = 0) -> str:
    return uri(file_of(picture(width, height, seed)))


@contextmanager
def seeing(
    folder: Path, *families: str, urls: UrlReader | None = None, settings: Settings | None = None
) -> Iterator[Running]:
    """A server of tiny models that see, named after their families, and of the bundled ones."""
    entries = []
    for family in families:
        save_vlm(family, folder / family)
        entries.append(inspect_checkpoint(family, folder / family, "test"))
    registry = Registry((*DEMO.entries, *entries))
    with omlx(settings, registry=registry, default=families[0], urls=urls) as running:
        yield running


def asking(*parts: Mapping[str, Any] | str, role: str = "user") -> dict[str, Any]:
    """A message of chat completions: texts, and images as data URIs or addresses."""
    content: list[Any] = []
    for part in parts:
        if isinstance(part, str) and part.startswith(("data:", "http", "file:", "/")):
            content.append({"type": "image_url", "image_url": {"url": part}})
        elif isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            content.append(part)
    return {"role": role, "content": content}
