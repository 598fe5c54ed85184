"""Content blocks of Anthropic's dialect, and the messages of templates that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal

from omlx.errors import BadRequest, Reason
from omlx.server import opaque_reasoning, tooling
from omlx.server.dialect import Json
from omlx.server.errors import field_error
from omlx.server.fields import Body, Listed
from omlx.server.media.parts import IMAGE, IMAGES, MEDIA, content_of, image_part, text_part
from omlx.server.media.result_notes import FILE_NOTES, warning

BILLING: Final = "x-anthropic-billing-header:"
"""Prefix of a first system block that changes with every request: it is dropped, for the prefix
cache."""

ELSEWHERE: Final = frozenset(
    {
        *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
        *("mcp_tool_use", "mcp_tool_result"),
    }
)
"""Blocks of an answer that are left out: tools made them that do not run here."""

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
            case kind if kind not in ELSEWHERE:
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
            content = content_of([_part(block, at)]) if role == "user" else _text(block, at)
            yield {"role": role, "content": content}
            continue
        if block.tool_use_id not in called:
            raise field_error("tools.no_call", at, id=str(block.tool_use_id))
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, at)}


def _merged(role: str, run: Sequence[Json]) -> Json:
    """Successive messages of one role as one."""
    parts = chain.from_iterable(_parts(message["content"]) for message in run)
    message: Json = {"role": role, "content": content_of(parts, _BETWEEN)}
    reasoning = [part["reasoning_content"] for part in run if "reasoning_content" in part]
    calls = list(chain.from_iterable(part.get("tool_calls", ()) for part in run))
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _parts(content: str | Sequence[Json]) -> Sequence[Json]:
    """Content as parts; an empty text is none."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return content


def _result(block: Block, at: str) -> str | list[Json]:
    """The content of a tool result, with a prefix in place of `is_error`, which templates lack."""
    if block.content is None or isinstance(block.content, str):
        parts = [text_part(block.content or "")]
    else:
        inner = enumerate(block.content)
        parts = [_part(part, f"{at}.content[{i}]", FILE_NOTES) for i, part in inner]
    content = content_of(parts, _BETWEEN)
    return _failed(content) if block.is_error else content


def _failed(content: str | list[Json]) -> str | list[Json]:
    if isinstance(content, str):
        return content if content.startswith(FAILED) else f"{FAILED}{content}"
    return content_of([text_part(FAILED), *content])


def _part(block: Block, at: str, notes: Mapping[str, str] = MappingProxyType({})) -> Json:
    """A block as a text or an image; of `notes`, a text in place of a file."""
    if block.type in notes and _document(block) is None:
        return text_part(notes[block.type])
    if block.type != IMAGE:
        return text_part(_text(block, at))
    source = block.source or {}
    url = source.get("url") if source.get("type") == "url" else None
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        url = f"data:;base64,{source['data']}"
    return image_part(IMAGE, url, None, at)


def left_out(messages: Sequence[Message]) -> Iterator[Reason]:
    """Yield a warning for each block of an answer that is left out."""
    for at, message in enumerate(messages):
        blocks = () if isinstance(message.content, str) else message.content
        for i, block in enumerate(blocks):
            if message.role == "assistant" and block.type in ELSEWHERE:
                field = f"messages[{at}].content[{i}]"
                yield Reason("request.item_left_out", {"field": field, "type": block.type})


def files_in_results(messages: Sequence[Message]) -> Iterator[Reason]:
    """Yield a warning for each file in a tool result that a note replaces."""
    for at, message in enumerate(messages):
        blocks = () if isinstance(message.content, str) else message.content
        for i, block in enumerate(blocks):
            if block.type != "tool_result" or isinstance(block.content, str):
                continue
            for j, part in enumerate(block.content or ()):
                if part.type in FILE_NOTES and _document(part) is None:
                    yield warning(f"messages[{at}].content[{i}].content[{j}]", part.type)


def _document(block: Block) -> str | None:
    """The text of a text document."""
    source = block.source or {}
    data = source.get("data") if source.get("type") == "text" else None
    if block.type == "document" and isinstance(data, str):
        return data
    return None


def _text(block: Block, at: str) -> str:
    """The text of a block or of a text document.

    Raises BadRequest for any other block.
    """
    document = _document(block)
    if document is not None:
        return document
    if block.type in IMAGES:
        raise field_error("image.role", at)
    if block.type in MEDIA or block.type == "document":
        raise field_error("request.media", at, type=block.type)
    if block.type != "text" or block.text is None:
        raise field_error("request.content", at, type=block.type)
    return block.text
