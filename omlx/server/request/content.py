"""Content of conversations, by one rule for all dialects.

Unknown parts, blocks and items without a text are left out with a warning, so that sessions of
newer clients continue. Images and files become parts of their own, which are read later. Audio and
video that a user attached are refused; in a tool result a note replaces them. Images, audio and
video of earlier answers, which other models made, are left out. Parts can be stored as JSON:

{"type": "image", "url": a data URI or an address, "detail": "low" or another or none,
 "kind": its type in the body, "field": its place there}
{"type": "file", "url": a data URI, or None for a file that is elsewhere, "name": its name,
 "kind" and "field" as above}
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final, Self
from urllib.parse import unquote_to_bytes

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from omlx.errors import BadRequest, Reason
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request.fields import Body, Listed
from omlx.text.template.render import Message

TEXT: Final = "text"
IMAGE: Final = "image"
IMAGES: Final = frozenset({IMAGE, "image_url", "input_image"})
"""Types of parts that are images, in any dialect."""
FILE: Final = "file"
FILES: Final = frozenset({FILE, "document", "input_file"})
_SHOWN: Final = 200
"""Characters of a file's name that the model sees."""
MEDIA: Final = IMAGES | {"input_audio", "input_video", "video_url", "audio_url"}


def image_part(kind: str, url: object, detail: str | None, field: str) -> Json:
    """Raises BadRequest if there is neither a data URI nor an address."""
    if not isinstance(url, str):
        raise field_error("image.source", field)
    return {"type": IMAGE, "url": url, "detail": detail, "kind": kind, "field": field}


def file_part(kind: str, data: object, name: object, field: str, media_type: object = "") -> Json:
    """`data`: a data URI, base64 alone, or anything else for a file that is not in the body."""
    url = data if isinstance(data, str) and data else None
    if url is not None and url[:5].lower() != "data:":
        url = f"data:{media_type};base64,{url}"
    shown = " ".join(str(name or kind).split())[:_SHOWN]
    return {"type": FILE, "url": url, "name": shown, "kind": kind, "field": field}


def images_of(message: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the image parts of a message."""
    content = message.get("content")
    if isinstance(content, list):
        yield from (part for part in content if part["type"] == IMAGE)


def shows_images(message: Mapping[str, Any]) -> bool:
    return any(True for _ in images_of(message))


def text_part(text: str) -> Json:
    return {"type": TEXT, "text": text}


def content_of(parts: Iterable[Json], between: str = "") -> str | list[Json]:
    """Return one text where all parts are texts; else the parts, neighbouring texts joined."""
    joined: list[Json] = []
    for kind, run in groupby(parts, itemgetter("type")):
        if kind == TEXT:
            joined.append(text_part(between.join(part["text"] for part in run)))
        else:
            joined += run
    if any(part["type"] != TEXT for part in joined):
        return joined
    return joined[0]["text"] if joined else ""


NOTES: Final[Mapping[str, str]] = {
    kind: f"[{kind}: left out, only text can be read here]" for kind in MEDIA | FILES
}
"""Texts that the model reads in place of parts, by type of part."""


def result_warning(field: str, kind: str) -> Reason:
    return Reason("content.media_in_result", {"field": field, "type": kind})


MAX_BYTES: Final = 20 << 20
"""Bytes of a file, decoded."""
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
        data = b64decode(_encoded(url[start:]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise field_error("image.broken", field) from error
    if len(data) > MAX_BYTES:
        raise too_large(field)
    return data


def file_bytes(url: str) -> bytes:
    """Return the bytes of a data URI, in base64 or as text with percent signs.

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
    """Return the base64 of a URI, padded; `+` may be written as `%2B`."""
    encoded = unquote_to_bytes(text) if "%" in text else text.encode()
    return encoded + b"=" * (-len(encoded) % 4)


REASONING_SHOWN: Final = "omlx"
"""The field's value where the reasoning itself is shown."""
_PREFIX: Final = "omlx."


def encode_reasoning(reasoning: str) -> str:
    return _PREFIX + b64encode(reasoning.encode("utf-8", "replace")).decode()


def decode_reasoning(shown: str, opaque: str | None) -> str:
    """The reasoning of a block that a client sends back: the shown text if there is one."""
    if shown or opaque is None or not opaque.startswith(_PREFIX):
        return shown
    try:
        return b64decode(opaque.removeprefix(_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


THINKING: Final = "thinking"
"""The type of a part that holds reasoning."""
TEXTS: Final = frozenset(
    {"text", "input_text", "output_text", "refusal", "reasoning_text", "summary_text"}
)
ATTRIBUTION: Final = "x-anthropic-billing-header:"
"""Prefix of a line that changes with every request: it is dropped, for the prefix cache."""


class Typed(Body):
    """A body whose `type` says which fields it has: of types that are not `READ`, fields of another
    form are dropped.
    """

    READ: ClassVar[frozenset[str]] = frozenset()

    type: str

    @model_validator(mode="wrap")
    @classmethod
    def _validated(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, dict) and value.get("type", "") is None:
            value = {name: part for name, part in value.items() if name != "type"}
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind in cls.READ:
            return handler(value)
        try:
            return handler(value)
        except ValidationError as error:
            dropped = {detail["loc"][0] for detail in error.errors(include_input=False)}
            return handler({name: part for name, part in value.items() if name not in dropped})


class ImageUrl(Body):
    url: str
    detail: str | None = None


class ContentPart(Typed):
    READ = TEXTS | IMAGES | MEDIA | FILES | {THINKING}

    text: str | None = None
    refusal: str | None = None
    thinking: str | Listed[ContentPart] | None = None
    image_url: str | ImageUrl | None = None
    detail: str | None = None
    file: dict[str, Any] | None = None
    filename: str | None = None
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None

    def image(self, field: str) -> Json:
        """The part as an image. Raises BadRequest if it names none."""
        if isinstance(self.image_url, ImageUrl):
            return image_part(self.type, self.image_url.url, self.image_url.detail, field)
        return image_part(self.type, self.image_url, self.detail, field)

    def attached(self, field: str) -> Json:
        """The part as a file; a file that the body only names is elsewhere."""
        given = vars(self) | (self.file or {})
        name = given["filename"] or given["file_url"] or given["file_id"]
        return file_part(self.type, given["file_data"], name, field)


class ContentReader:
    """Joins contents of a conversation; warns, in order, of parts that the model does not get."""

    def __init__(self) -> None:
        self.warnings: list[Reason] = []

    def leave_out(self, field: str, kind: str) -> None:
        self.warnings.append(Reason("request.item_left_out", {"field": field, "type": kind[:100]}))

    def replace(self, field: str, kind: str) -> str:
        """Return the note in place of a part that no model reads."""
        self.warnings.append(result_warning(field, kind))
        return NOTES[kind]

    def join_texts(
        self, content: str | list[ContentPart], field: str, *, answered: bool = False
    ) -> str:
        """Join the texts of parts, without reasoning.

        Raises BadRequest for images and media, but leaves out those of an earlier answer.
        """
        if isinstance(content, str):
            return content
        texts = []
        for i, part in enumerate(content):
            at = f"{field}[{i}]"
            if answered and part.type in MEDIA:
                self.leave_out(at, part.type)
            elif part.type in IMAGES:
                raise field_error("image.role", at)
            elif part.type in FILES:
                texts.append(self.replace(at, part.type))
            elif part.type != THINKING:
                texts.append(self._text(part, at))
        return "".join(texts)

    def join_parts(
        self, content: str | list[ContentPart], field: str, *, result: bool = False
    ) -> str | list[Json]:
        """Join the texts of parts between images and files; one text where there are none.

        Raises BadRequest for an image without a source, and for media that are in no tool `result`.
        """
        if isinstance(content, str):
            return content
        parts = []
        for i, part in enumerate(content):
            at = f"{field}[{i}]"
            if part.type in IMAGES:
                parts.append(part.image(at))
            elif part.type in FILES:
                parts.append(part.attached(at))
            elif result and part.type in MEDIA:
                parts.append(text_part(self.replace(at, part.type)))
            else:
                parts.append(text_part(self._text(part, at)))
        return content_of(parts)

    def _text(self, part: ContentPart, at: str) -> str:
        text = part.refusal if part.type == "refusal" else part.text
        if part.type in MEDIA:
            raise field_error("request.media", at, type=part.type)
        if text is None and part.type in TEXTS:
            raise field_error("request.missing", f"{at}.{part.type}")
        if text is None:
            self.leave_out(at, part.type)
        return text or ""


def without_attribution(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without lines at the beginning of system messages that differ in every
    request."""
    kept = []
    for message in messages:
        text = message["content"]
        if message["role"] == "system" and text.startswith(ATTRIBUTION):
            text = text.partition("\n")[2].lstrip("\n")
            message = {**message, "content": text}
            if not text and len(messages) > 1:
                continue
        kept.append(message)
    return kept


def join_thinking(content: str | list[ContentPart] | None) -> str:
    """Join the reasoning of `thinking` parts, which are a text or parts with texts."""
    texts = []
    for part in content or ():
        if isinstance(part, str) or part.type != THINKING:
            continue
        if isinstance(part.thinking, list):
            texts += [inner.text or "" for inner in part.thinking]
        else:
            texts.append(part.thinking or "")
    return "".join(texts)
