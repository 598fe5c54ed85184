"""The images of a request, once the model that shall read them is known.

A model that sees gets prepared images in the places of their parts; those of tool results in a user
message behind the results, because few templates show images elsewhere. A model that does not gets
a note in tool results, so that an agent's session continues; an image of the user's is refused.

Addresses are read where the settings allow them. A name is resolved once, and the connection goes
to that address, if public. No redirects, no proxies, no cookies.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import h11

from omlx.engine.vision.spans import PreparedImage
from omlx.errors import BadRequest, Reason
from omlx.models.vision import support
from omlx.models.vision.support import VisionSupport
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request.content import (
    IMAGE,
    MAX_BYTES,
    NOTES,
    data_bytes,
    images_of,
    is_address,
    result_warning,
    shows_images,
    text_part,
    too_large,
)
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.workers import LruCache, Workers
from omlx.text.template.conversation import BETWEEN
from omlx.text.tokens import MAX_TOKENS

MAX_IMAGES: Final = 32
"""Images of one request."""
MOVED: Final = "[image: shown below the results]"
SHOWN: Final = "Images of the results above:"
_TOOL: Final = "tool"


@dataclass(frozen=True, slots=True)
class Reader:
    """The model that a request is for; more than `context_length` tokens are never prepared."""

    model: str
    vision: VisionSupport
    context_length: int = MAX_TOKENS


async def attach(
    request: GenerationRequest, reader: Reader, loader: ImageLoader
) -> GenerationRequest:
    """Return the request with prepared images in place of its image parts.

    Raises BadRequest, naming the field, for an image that cannot be read.
    """
    parts = [part for message in request.messages for part in images_of(message)]
    if not parts:
        return request
    family = reader.vision.family
    if family is None:
        return _without_images(request, reader)
    if len(parts) > MAX_IMAGES:
        raise BadRequest("image.too_many", param="messages", count=len(parts), limit=MAX_IMAGES)
    prepared, tokens = list[PreparedImage](), 0
    for part in parts:
        image = await loader.load(part, family)
        tokens += image.features
        if tokens > reader.context_length:  # before the next one takes memory
            limit = reader.context_length
            raise BadRequest("engine.prompt_too_long", param="messages", tokens=tokens, limit=limit)
        prepared.append(image)
    images = iter(prepared)
    messages = [_shown(message, images) for message in request.messages]
    return replace(request, messages=_results_below(messages))


def _shown(message: Mapping[str, Any], images: Iterator[PreparedImage]) -> Json:
    """The message with the next images in place of its image parts."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    parts = [
        {"type": IMAGE, "image": next(images)} if part["type"] == IMAGE else part
        for part in content
    ]
    return {**message, "content": parts}


def _results_below(messages: Sequence[Json]) -> list[Json]:
    """Images of successive tool results in a user message behind them."""
    moved: list[Json] = []
    waiting: list[Json] = []
    for message in messages:
        if message["role"] != _TOOL and waiting:
            moved.append(_user(waiting))
            waiting = []
        if message["role"] == _TOOL and (images := list(images_of(message))):
            waiting += images
            message = {**message, "content": _noted(message["content"], lambda part: MOVED)}
        moved.append(message)
    if waiting:
        moved.append(_user(waiting))
    return moved


def _user(images: Sequence[Json]) -> Json:
    return {"role": "user", "content": [text_part(SHOWN), *images]}


def _noted(content: Sequence[Json], note: Callable[[Json], str]) -> str:
    """The text of a result with notes in place of its images."""
    return BETWEEN.join(note(part) if part["type"] == IMAGE else part["text"] for part in content)


def _without_images(request: GenerationRequest, reader: Reader) -> GenerationRequest:
    """Raises BadRequest for an image that is not in a tool result."""
    reason = reader.vision.off_reason or Reason("vision.off.text")
    messages, warnings = [], list(request.warnings)
    for message in request.messages:
        for part in images_of(message):
            if message["role"] != _TOOL:
                names = {"model": reader.model, "reason": reason.message}
                raise field_error("image.model", part["field"], **names)
            warnings.append(result_warning(part["field"], part["kind"]))
        if shows_images(message):
            noted = _noted(message["content"], lambda part: NOTES[part["kind"]])
            message = {**message, "content": noted}
        messages.append(message)
    return replace(request, messages=messages, warnings=tuple(warnings))


if TYPE_CHECKING:
    from omlx.models.vision.family import VisionFamily

LOW_TOKENS: Final = 256
"""Tokens of an image with `detail: low`, at most."""
KEPT: Final = 16
KEPT_BYTES: Final = 64 << 20


class ImageLoader:
    """Loads the images of requests. `urls` reads addresses; None: addresses are refused."""

    def __init__(self, workers: Workers, urls: UrlReader | None = None) -> None:
        self._workers = workers
        self._urls = urls
        self._kept = LruCache[str, PreparedImage](KEPT, KEPT_BYTES, lambda image: image.nbytes)

    async def load(self, part: Json, family: VisionFamily) -> PreparedImage:
        """Return the image of a part as the model's tower reads it. Raises BadRequest."""
        url, field = part["url"], part["field"]
        if is_address(url):
            if self._urls is None:
                raise field_error("image.url_off", field)
            read = partial(bytes, await self._urls.read(url, field))
        else:
            read = partial(data_bytes, url, field)
        most = LOW_TOKENS if part["detail"] == "low" else support.MAX_TOKENS

        def prepare() -> PreparedImage:
            return self._prepared(read(), family, most, field)

        return await self._workers.run("images", prepare, at_once=2)

    def _prepared(self, data: bytes, family: VisionFamily, most: int, field: str) -> PreparedImage:
        from omlx.server.request.media.decode import decode  # noqa: PLC0415 — needs the extra

        name = family.image_name(data, most)
        return self._kept.get(name, lambda: family.patches(decode(data, field), name, most))


Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[Address]]]

TIMEOUT_S: Final = 10.0
PORTS: Final = {"http": 80, "https": 443}
_CHUNK: Final = 64 << 10
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that lead to IPv4 addresses (NAT64, RFC 6052)."""


def is_public(address: Address, port: int) -> bool:
    """Whether a connection to an address leaves this machine and its networks."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(inner, port)
        if address in _TRANSLATED or address.teredo or address.is_site_local:
            return False
    special = address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and port in PORTS.values()


async def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return [ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]


class UrlReader:
    """Reads images from addresses. `allowed` says to which addresses and ports connections go."""

    def __init__(
        self,
        resolve: Resolve = resolve,
        allowed: Callable[[Address, int], bool] = is_public,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._timeout_s = timeout_s

    async def read(self, url: str, field: str) -> bytes:
        """Return the file at an address.

        Raises BadRequest about `field` for addresses that are not public, for anything but a
        complete answer with status 200 in time, and for files beyond `MAX_BYTES`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._read(url, field)
        except TimeoutError as error:
            raise _failed(field, f"{self._timeout_s:g} s") from error
        except (OSError, ValueError, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            raise _failed(field, type(error).__name__) from error

    async def _read(self, url: str, field: str) -> bytes:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or PORTS[parts.scheme]
        if not host or parts.username is not None:
            raise field_error("image.source", field)
        addresses = await self._resolve(host, port)
        if not addresses or not all(self._allowed(address, port) for address in addresses):
            raise field_error("image.url_private", field)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        name = host if secure else None
        reader, writer = await asyncio.open_connection(
            str(addresses[0]), port, ssl=secure, server_hostname=name
        )
        try:
            return await _exchange(reader, writer, parts, field)
        finally:
            writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: SplitResult, field: str
) -> bytes:
    """Send one request and return the body of its answer. Raises BadRequest; RemoteProtocolError
    for what is not HTTP."""
    connection, body = h11.Connection(h11.CLIENT), bytearray()
    for event in (_request(parts), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    while True:
        match connection.next_event():
            case h11.Response(status_code=status) if status != 200:
                raise _failed(field, f"HTTP {status}")
            case h11.Data(data=data):
                body += data
                if len(body) > MAX_BYTES:
                    raise too_large(field)
            case h11.EndOfMessage():
                return bytes(body)
            case h11.NEED_DATA:
                connection.receive_data(await reader.read(_CHUNK))
            case _:
                pass  # headers, and informational answers before the real one


def _request(parts: SplitResult) -> h11.Request:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [
        ("host", parts.netloc),
        ("accept", "image/*"),
        ("accept-encoding", "identity"),
        ("user-agent", "omlx"),
        ("connection", "close"),
    ]
    return h11.Request(method="GET", target=target, headers=headers)


def _failed(field: str, detail: str) -> BadRequest:
    return field_error("image.url_failed", field, detail=detail)
