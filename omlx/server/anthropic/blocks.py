"""Content blocks of Anthropic's dialect, and the messages of templates that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, Literal

from omlx.errors import BadRequest, Reason
from omlx.server import opaque_reasoning, tooling
from omlx.server.dialect import Json
from omlx.server.errors import field_error
from omlx.server.fields import IMAGES, Body, Listed
from omlx.server.result_media import NOTES, warning

BILLING: Final = "x-anthropic-billing-header:"
"""Prefix of a first system block that changes with every request: it is dropped, for the prefix
cache."""

FAILED: Final = "Error: "
"""Prefix of the result of a tool call that failed."""

_BETWEEN: Final = "\n\n"


class Block(Body):
    """A block of any type; its fields depend on the type.

    `cache_control` is ignored: every prefix is cached.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | str | None = None
    tool_use_id: str | None = None
    is_error: bool | None = None
    content: str | Listed[Block] | None = None
    source: dict[str, Any] | None = None


class Message(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Listed[Block]


def system(given: str | Sequence[Block] | None) -> list[Json]:
    """The system message, if there is one."""
    if isinstance(given, str):
        texts = [given] if given else []
    else:
        texts = [_text(block, f"system[{i}]") for i, block in enumerate(given or ())]
        if texts and texts[0].startswith(BILLING):
            del texts[0]
    if not texts:
        return []
    return [{"role": "system", "content": _BETWEEN.join(texts)}]


def rendered(messages: Sequence[Message]) -> list[Json]:
    """Messages as templates expect them: neighbours of one role are merged, results of tools are
    separate messages.

    Raises BadRequest for unsupported blocks, and for results without a call.
    """
    separate: list[Json] = []
    called: set[str] = set()
    for at, message in enumerate(messages):
        field = f"messages[{at}].content"
        content = message.content
        blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
        if message.role == "assistant":
            answer = _assistant(blocks, field)
            called |= {call["id"] for call in answer.get("tool_calls", ())}
            separate.append(answer)
        else:
            separate += _user(message.role, blocks, field, called)
    conversation: list[Json] = []
    for role, run in groupby(separate, itemgetter("role")):
        neighbours = list(run)
        if role != "tool":
            neighbours = [_merged(role, neighbours)]
        conversation += neighbours
    return conversation


def _assistant(blocks: Sequence[Block], field: str) -> Json:
    texts, reasoning, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        match block.type:
            case "thinking":
                reasoning.append(opaque_reasoning.decode(block.thinking or "", block.signature))
            case "redacted_thinking":
                pass  # only the service that encrypted it can read it
            case "tool_use":
                if not block.id or not block.name:
                    missing = "id" if block.name else "name"
                    raise BadRequest("request.missing", param=at, field=f"{at}.{missing}")
                calls.append(tooling.call(block.id, block.name, block.input or {}))
            case _:
                texts.append(_text(block, at))
    message: Json = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "\n".join(filter(None, reasoning))
    if calls:
        message["tool_calls"] = calls
    return message


def _user(role: str, blocks: Sequence[Block], field: str, called: set[str]) -> Iterator[Json]:
    """Yield a message for each block of a user or system message."""
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        if block.type != "tool_result":
            yield {"role": role, "content": _text(block, at)}
            continue
        if block.tool_use_id not in called:
            raise field_error("tools.no_call", at, id=str(block.tool_use_id))
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, at)}


def _merged(role: str, run: Sequence[Json]) -> Json:
    """Successive messages of one role as one."""
    texts = [part["content"] for part in run if part["content"]]
    message: Json = {"role": role, "content": _BETWEEN.join(texts)}
    reasoning = [part["reasoning_content"] for part in run if "reasoning_content" in part]
    calls = list(chain.from_iterable(part.get("tool_calls", ()) for part in run))
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _result(block: Block, at: str) -> str:
    """The text of a tool result. Templates have no field for `is_error`: a prefix replaces it."""
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        parts = enumerate(block.content)
        texts = [_text(part, f"{at}.content[{i}]", is_result=True) for i, part in parts]
        text = _BETWEEN.join(texts)
    if block.is_error and not text.startswith(FAILED):
        text = f"{FAILED}{text}"
    return text


def media_in_results(messages: Sequence[Message]) -> Iterator[Reason]:
    """Yield a warning for each picture in a tool result."""
    for at, message in enumerate(messages):
        blocks = () if isinstance(message.content, str) else message.content
        for i, block in enumerate(blocks):
            if block.type != "tool_result" or isinstance(block.content, str):
                continue
            for j, part in enumerate(block.content or ()):
                if part.type in NOTES and _document(part) is None:
                    yield warning(f"messages[{at}].content[{i}].content[{j}]", part.type)


def _document(block: Block) -> str | None:
    """The text of a text document."""
    source = block.source or {}
    data = source.get("data") if source.get("type") == "text" else None
    if block.type == "document" and isinstance(data, str):
        return data
    return None


def _text(block: Block, at: str, *, is_result: bool = False) -> str:
    """The text of a block or of a text document; a note for a picture in a result.

    Raises BadRequest for any other block.
    """
    document = _document(block)
    if document is not None:
        return document
    if is_result and block.type in NOTES:
        return NOTES[block.type]
    if block.type in IMAGES or block.type == "document":
        raise field_error("request.media", at, type=block.type)
    if block.type != "text" or block.text is None:
        raise field_error("request.content", at, type=block.type)
    return block.text
