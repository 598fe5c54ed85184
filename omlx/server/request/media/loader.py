"""Image parts to prepared images: read, decoded and resized in threads of their own.

    part ─ data URI or address ─► bytes ─ image_name ─► kept? ─ decode, patches ─► PreparedImage

Every turn of a conversation sends its images again, so that prepared ones are kept, by the hash of
the file and of the preprocessing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final

from omlx.engine.image import PreparedImage
from omlx.models.vision.support import MAX_TOKENS
from omlx.server.http.errors import field_error
from omlx.server.request.dialect import Json
from omlx.server.request.media.fetch import UrlReader
from omlx.server.request.media.source import data_bytes, is_address

if TYPE_CHECKING:
    from omlx.models.vision.family import VisionFamily

THREADS: Final = 2
LOW_TOKENS: Final = 256
"""Tokens of an image with `detail: low`, at most."""
KEPT: Final = 16
KEPT_BYTES: Final = 64 << 20


class ImageLoader:
    """`urls` reads images from addresses; None: that is off."""

    def __init__(self, urls: UrlReader | None = None) -> None:
        self._urls = urls
        self._pool = ThreadPoolExecutor(THREADS, "omlx-media")
        self._kept = PreparedImages()

    async def load(self, part: Json, family: VisionFamily) -> PreparedImage:
        """Return the image of a part as the model's tower reads it. Raises BadRequest."""
        url, field = part["url"], part["field"]
        if is_address(url):
            if self._urls is None:
                raise field_error("image.url_off", field)
            read = partial(bytes, await self._urls.read(url, field))
        else:
            read = partial(data_bytes, url, field)
        most = LOW_TOKENS if part["detail"] == "low" else MAX_TOKENS

        def prepare() -> PreparedImage:
            return self._prepared(read(), family, most, field)

        return await asyncio.get_running_loop().run_in_executor(self._pool, prepare)

    def shut_down(self) -> None:
        self._pool.shutdown(wait=False)

    def _prepared(self, data: bytes, family: VisionFamily, most: int, field: str) -> PreparedImage:
        from omlx.server.request.media.decode import decode  # noqa: PLC0415 — needs the extra

        name = family.image_name(data, most)
        image = self._kept.get(name)
        if image is None:
            image = family.patches(decode(data, field), name, most)
            self._kept.put(image)
        return image


class PreparedImages:
    """The images used last, `KEPT` and `KEPT_BYTES` at most. Thread-safe."""

    def __init__(self) -> None:
        self._images: OrderedDict[str, PreparedImage] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> PreparedImage | None:
        with self._lock:
            if name in self._images:
                self._images.move_to_end(name)
            return self._images.get(name)

    def put(self, image: PreparedImage) -> None:
        with self._lock:
            self._images[image.name] = image
            while len(self._images) > KEPT or self._nbytes > KEPT_BYTES:
                self._images.popitem(last=False)

    @property
    def _nbytes(self) -> int:
        return sum(image.nbytes for image in self._images.values())
