"""Ollama's messages as templates expect them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from omlx.server.http.errors import field_error
from omlx.server.request import tools as tooling
from omlx.server.request.dialect import Json
from omlx.server.request.fields import Body, Listed, Text
from omlx.server.request.media.parts import IMAGE, content_of, image_part, text_part

_DATA: Final = "data:"
_BASE64: Final = "data:;base64,"


class CalledFunction(Body):
    name: Text
    arguments: dict[str, Any] | str | None = None


class ToolCall(Body):
    function: CalledFunction
    id: str | None = None


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Listed[str] | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None


def rendered(messages: Sequence[Message]) -> list[Json]:
    """The conversation with ids for calls and results, which Ollama's messages need not have: a
    result answers the first open call of its function.

    Raises BadRequest for images and calls in messages that have no place for them.
    """
    waiting: list[tuple[str, str]] = []  # id and function of each call without a result
    conversation = []
    for at, message in enumerate(messages):
        calls = _calls(message, at)
        waiting += [(call["id"], call["function"]["name"]) for call in calls]
        plain: Json = {
            "role": "system" if message.role == "developer" else message.role,
            "content": content(message.content, message.images, message.role, f"messages[{at}]"),
        }
        if message.thinking and message.role == "assistant":
            plain["reasoning_content"] = message.thinking
        if calls:
            plain["tool_calls"] = calls
        if message.role == "tool":
            plain["tool_call_id"] = _answered(message, waiting) or _id(at, 0)
            if message.tool_name is not None:
                plain["name"] = message.tool_name
        conversation.append(plain)
    return tooling.with_names(conversation)


def content(
    text: str | None, images: Sequence[str] | None, role: str, field: str
) -> str | list[Json]:
    """One text, or images in front of it."""
    parts = []
    for at, image in enumerate(images or ()):
        place = f"{field}.images[{at}]".removeprefix(".")
        if role not in ("user", "tool"):
            raise field_error("image.role", place)
        uri = image if image[: len(_DATA)].lower() == _DATA else _BASE64 + image
        parts.append(image_part(IMAGE, uri, None, place))
    return content_of([*parts, text_part(text or "")])


def _calls(message: Message, at: int) -> list[Json]:
    if message.tool_calls and message.role != "assistant":
        field = f"messages[{at}].tool_calls"
        raise field_error("request.unsupported", field)
    return [
        tooling.call(call.id or _id(at, n), call.function.name, call.function.arguments or {})
        for n, call in enumerate(message.tool_calls or ())
    ]


def _id(at: int, n: int) -> str:
    return f"call_{at}_{n}"


def _answered(message: Message, waiting: list[tuple[str, str]]) -> str | None:
    """The id of the call that a result answers, which is taken out of `waiting`; None if there is
    none."""
    for call in waiting:
        if message.tool_call_id is None:
            matches = message.tool_name in (None, call[1])
        else:
            matches = message.tool_call_id == call[0]
        if matches:
            waiting.remove(call)
            return call[0]
    return message.tool_call_id
