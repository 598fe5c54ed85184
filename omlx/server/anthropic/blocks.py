"""Content blocks of this dialect, and the messages that templates make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from omlx.errors import BadRequest
from omlx.server import opaque_reasoning, tooling
from omlx.server.dialect import Json
from omlx.server.fields import IMAGES, Body, Listed

BILLING: Final = "x-anthropic-billing-header:"
"""A first system block that begins so changes with every request, and would part prefixes that are otherwise one."""

FAILED: Final = "Error: "
"""What the result of a tool that failed begins with."""

_BETWEEN: Final = "\n\n"


class Block(Body):
    """A block of any type; which fields it has depends on the type. `cache_control` may stand anywhere and is ignored:
    prefixes are kept without being asked for."""

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
    if given is None or isinstance(given, str):
        return [{"role": "system", "content": given}] if given else []
    texts = [_text(block, f"system[{i}]") for i, block in enumerate(given)]
    if texts and texts[0].startswith(BILLING):
        del texts[0]
    return [{"role": "system", "content": _BETWEEN.join(texts)}] if texts else []


def rendered(messages: Sequence[Message]) -> list[Json]:
    """Messages as templates know them. Neighbours of one role are one message; results of tools are messages of
    their own. Raises BadRequest for blocks that this server does not have, and for results of calls nobody made."""
    told: list[Json] = []
    called: set[str] = set()
    for at, message in enumerate(messages):
        field = f"messages[{at}].content"
        content = message.content
        blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
        if message.role == "assistant":
            fresh = _assistant(blocks, field)
            called |= {call["id"] for call in fresh.get("tool_calls", ())}
            if told and told[-1]["role"] == "assistant":
                fresh = _both(told.pop(), fresh)
            told.append(fresh)
        else:
            _add_user(told, message.role, blocks, field, called)
    return told


def _assistant(blocks: Sequence[Block], field: str) -> Json:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        match block.type:
            case "thinking":
                thoughts.append(opaque_reasoning.decode(block.thinking or "", block.signature))
            case "redacted_thinking":
                pass  # nobody but its maker can read it
            case "tool_use":
                if not block.id or not block.name:
                    raise BadRequest(
                        "request.missing", param=at, field=f"{at}.{'id' if block.name else 'name'}"
                    )
                calls.append(tooling.call(block.id, block.name, block.input or {}))
            case _:
                texts.append(_text(block, at))
    message: Json = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(filter(None, thoughts))
    if calls:
        message["tool_calls"] = calls
    return message


def _both(one: Json, other: Json) -> Json:
    """Two answers in a row as one."""
    message = one | {"content": one["content"] + other["content"]}
    thoughts = [each["reasoning_content"] for each in (one, other) if "reasoning_content" in each]
    calls = [*one.get("tool_calls", ()), *other.get("tool_calls", ())]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _add_user(
    told: list[Json], role: str, blocks: Sequence[Block], field: str, called: set[str]
) -> None:
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        if block.type == "tool_result":
            if block.tool_use_id not in called:
                raise BadRequest("tools.no_call", param=at, field=at, id=str(block.tool_use_id))
            told.append(
                {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, at)}
            )
        else:
            text = _text(block, at)
            if told and told[-1]["role"] == role:
                told[-1] = {"role": role, "content": told[-1]["content"] + _BETWEEN + text}
            else:
                told.append({"role": role, "content": text})


def _result(block: Block, at: str) -> str:
    """Templates have no place for `is_error`, so it is said in words."""
    if block.content is None or isinstance(block.content, str):
        told = block.content or ""
    else:
        told = _BETWEEN.join(
            _text(part, f"{at}.content[{i}]") for i, part in enumerate(block.content)
        )
    return f"{FAILED}{told}" if block.is_error and not told.startswith(FAILED) else told


def _text(block: Block, at: str) -> str:
    """Texts, and documents that are texts."""
    source = block.source or {}
    if (
        block.type == "document"
        and source.get("type") == "text"
        and isinstance(source.get("data"), str)
    ):
        return str(source["data"])
    if block.type in IMAGES or block.type == "document":
        raise BadRequest("request.media", param=at, field=at, type=block.type)
    if block.type != "text" or block.text is None:
        raise BadRequest("request.content", param=at, field=at, type=block.type)
    return block.text
