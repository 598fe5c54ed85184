"""The images of a request, once the model that shall read them is known.

A model that sees gets prepared images in the places of their parts; those of tool results in a user
message behind the results, because few templates show images elsewhere. A model that does not gets
a note in tool results, so that an agent's session continues; an image of the user's is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from omlx.engine.image import PreparedImage
from omlx.errors import BadRequest, Reason
from omlx.models.pool.served import ServedModel
from omlx.models.vision.support import VisionSupport
from omlx.server.http.errors import field_error
from omlx.server.request.dialect import Json
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.media.loader import ImageLoader
from omlx.server.request.media.parts import IMAGE, images_of, shows_images, text_part
from omlx.server.request.media.result_notes import NOTES, warning
from omlx.text.template.conversation import BETWEEN
from omlx.text.tokens import MAX_TOKENS

MAX_IMAGES: Final = 32
"""Of one request."""
MOVED: Final = "[image: shown below the results]"
SHOWN: Final = "Images of the results above:"
_TOOL: Final = "tool"


@dataclass(frozen=True, slots=True)
class Reader:
    """The model that a request is for; more than `context_length` tokens are never prepared."""

    model: str
    vision: VisionSupport
    context_length: int = MAX_TOKENS

    @classmethod
    def of(cls, served: ServedModel) -> Reader:
        return cls(served.id, served.vision, served.context_length)


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


def _shown(message: Mapping[str, Any], images: Iterable[PreparedImage]) -> Json:
    """The message with the next images in place of its image parts."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    images = iter(images)
    parts = []
    for part in content:
        if part["type"] == IMAGE:
            part = {"type": IMAGE, "image": next(images)}
        parts.append(part)
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
            warnings.append(warning(part["field"], part["kind"]))
        if shows_images(message):
            noted = _noted(message["content"], lambda part: NOTES[part["kind"]])
            message = {**message, "content": noted}
        messages.append(message)
    return replace(request, messages=messages, warnings=tuple(warnings))
