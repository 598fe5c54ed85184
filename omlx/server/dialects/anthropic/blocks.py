"""Content blocks of Anthropic's dialect as messages for chat templates.

`content` has the rule for parts that are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, Literal

from omlx.errors import BadRequest
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.content import (
    IMAGE,
    IMAGES,
    MEDIA,
    ContentReader,
    Typed,
    content_of,
    decode_reasoning,
    encode_reasoning,
    file_part,
    image_part,
    text_part,
)
from omlx.server.request.fields import Body, Listed
from omlx.tools.tool import SEARCH, WEB, Tool, ToolResult, WebPage

FAILED: Final = "Error: "
"""Prefix of a failed tool call's result — chat templates have no `is_error`."""
LOADED: Final = "Loaded: "
"""Prefix of a result that only names tools, before their names."""
DOCUMENT: Final = "document"
MCP_USE: Final = "mcp_tool_use"
MCP_RESULT: Final = "mcp_tool_result"
SEARCH_USE: Final = "server_tool_use"
SEARCH_RESULT: Final = "web_search_tool_result"
WEB_SEARCH: Final = "web_search"
USES: Final = ("tool_use", MCP_USE, SEARCH_USE)
"""Types of blocks with a call."""
_BETWEEN: Final = "\n\n"


class Block(Typed):
    """A block of any type, which decides the fields present.

    `cache_control` is ignored: every prefix is cached.
    """

    READ = (
        IMAGES
        | MEDIA
        | {
            *("text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
            *(DOCUMENT, "search_result", "compaction", "tool_reference", "tool_addition"),
        }
    )

    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    title: str | None = None
    input: dict[str, Any] | str | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    content: str | Listed[Block] | None = None
    source: dict[str, Any] | str | None = None
    tool: dict[str, Any] | None = None
    server_name: str | None = None
    url: str | None = None
    encrypted_content: str | None = None

    @property
    def page(self) -> WebPage:
        """Page of a `web_search_result` made here."""
        excerpt = decode_reasoning("", self.encrypted_content)
        return WebPage(self.title or "", self.url or "", excerpt)


class AnthropicMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Listed[Block]


def system(given: str | Sequence[Block] | None, reading: ContentReader) -> list[Json]:
    """Return the system message; no message for an empty prompt."""
    if isinstance(given, str):
        texts = [given]
    else:
        texts = [_text(block, f"system[{i}]", reading) for i, block in enumerate(given or ())]
    text = _BETWEEN.join(filter(None, texts))
    return [{"role": "system", "content": text}] if text else []


def rendered(messages: Sequence[AnthropicMessage], reading: ContentReader) -> list[Json]:
    """Return messages as chat templates expect them; `reading` notes omissions.

    Neighbours of the same role are merged; results of tools become separate messages. Raises
    BadRequest for images and media in roles without them, and for results without a call.
    """
    separate: list[Json] = []
    called: set[str] = set()
    for at, message in enumerate(messages):
        field = f"messages[{at}].content"
        content = message.content
        blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
        if message.role == "assistant":
            for answer in _assistant(blocks, field, reading):
                called |= {call["id"] for call in answer.get("tool_calls", ())}
                separate.append(answer)
        else:
            turn = list(_user(message.role, blocks, field, called, reading))
            follows = not separate or separate[-1]["role"] == "assistant"
            if not turn and follows and message.role == "user":
                turn = [{"role": "user", "content": ""}]  # else the last answer would be continued
            separate += turn
    conversation: list[Json] = []
    for role, run in groupby(separate, itemgetter("role")):
        neighbours = list(run)
        if role != "tool":
            neighbours = [_merged(role, neighbours)]
        conversation += neighbours
    return conversation


def added_tools(messages: Sequence[AnthropicMessage]) -> Iterator[tuple[str, Json]]:
    """Yield place and definition of each tool added by a block during the conversation."""
    for at, message in enumerate(messages):
        blocks = () if isinstance(message.content, str) else message.content
        for i, block in enumerate(blocks):
            definition = (block.tool or {}).get("definition")
            if block.type == "tool_addition" and isinstance(definition, dict):
                yield f"messages[{at}].content[{i}].tool.definition", definition


def _assistant(blocks: Sequence[Block], field: str, reading: ContentReader) -> Iterator[Json]:
    """Yield the messages of an answer, split at results of server tools.

    A call without a result is left out, and so is a result without a call.
    """
    returned = {block.tool_use_id for block in blocks if _result_of_server(block) is not None}
    run_here = {block.id for block in blocks if _server_function(block) and block.id in returned}
    begun: list[tuple[str, Block]] = []
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        if block.type in (MCP_RESULT, SEARCH_RESULT) and block.tool_use_id in run_here:
            yield _answer(begun, run_here, reading)
            begun = []
            content = _result_of_server(block)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        elif (
            block.type in (MCP_USE, MCP_RESULT, SEARCH_USE, SEARCH_RESULT)
            and block.id not in run_here
        ):
            reading.leave_out(at, block.type)
        else:
            begun.append((at, block))
    if begun or not run_here:
        yield _answer(begun, run_here, reading)


def _answer(
    blocks: Sequence[tuple[str, Block]], run_here: Collection[str | None], reading: ContentReader
) -> Json:
    texts, reasoning, calls = [], [], []
    for at, block in blocks:
        match block.type:
            case "thinking":
                reasoning.append(decode_reasoning(block.thinking or "", block.signature))
            case "redacted_thinking":
                pass  # only the service that encrypted it can read it
            case kind if kind in USES:
                name = _server_function(block) if block.id in run_here else block.name
                if not block.id or not name:
                    missing = "id" if name else "name"
                    raise BadRequest("request.missing", param=at, field=f"{at}.{missing}")
                calls.append(tooling.call(block.id, name, block.input or {}))
            case kind if kind in MEDIA:
                reading.leave_out(at, kind)
            case _:
                texts.append(_text(block, at, reading))
    message: Json = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "\n".join(filter(None, reasoning))
    if calls:
        message["tool_calls"] = calls
    return message


def _server_function(block: Block) -> str | None:
    """Return the function called by a server tool's block; None for other blocks."""
    if block.type == MCP_USE and block.server_name and block.name:
        return f"{block.server_name}{Tool.BETWEEN}{block.name}"
    if block.type == SEARCH_USE and block.name == WEB_SEARCH:
        return f"{WEB}{Tool.BETWEEN}{SEARCH}"
    return None


def _result_of_server(block: Block) -> str | None:
    """Return the text of a server tool's result; None for results of other servers."""
    content = block.content
    if block.type == MCP_RESULT and content is not None:
        texts = [content] if isinstance(content, str) else [block.text for block in content]
        return "\n".join(text for text in texts if text is not None)
    if block.type == SEARCH_RESULT and isinstance(content, list):
        own = encode_reasoning("")
        if all((part.encrypted_content or "").startswith(own) for part in content):
            return ToolResult.of(tuple(part.page for part in content)).text
    return None


def _user(
    role: str, blocks: Sequence[Block], field: str, called: set[str], reading: ContentReader
) -> Iterator[Json]:
    """Yield messages of a user or system turn; `called` holds the ids of earlier calls."""
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        if block.type == "tool_result" and role == "user":
            if block.tool_use_id not in called:
                raise field_error("tools.no_call", at, id=str(block.tool_use_id))
            content = _result(block, at, reading)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        elif role == "user":
            parts = _block_parts(block, at, reading)
            if parts or block.type == "text":
                yield {"role": role, "content": content_of(parts, _BETWEEN)}
        elif text := _text(block, at, reading):
            yield {"role": role, "content": text}


def _merged(role: str, run: Sequence[Json]) -> Json:
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
    """Return content as parts; an empty text has none."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return content


def _result(block: Block, at: str, reading: ContentReader) -> str | list[Json]:
    """Return the content of a tool result, prefixed with `FAILED` if `is_error`."""
    if block.content is None or isinstance(block.content, str):
        content: str | list[Json] = block.content or ""
    else:
        content = _inner(block.content, f"{at}.content", reading)
    return _failed(content) if block.is_error else content


def _inner(blocks: Sequence[Block], field: str, reading: ContentReader) -> str | list[Json]:
    parts: list[Json] = []
    loaded = []
    for i, block in enumerate(blocks):
        at = f"{field}[{i}]"
        if block.type == "tool_reference" and block.tool_name:
            loaded.append(block.tool_name)
        elif block.type in MEDIA - IMAGES:
            parts.append(text_part(reading.replace(at, block.type)))
        else:
            parts += _block_parts(block, at, reading)
    # Templates list every tool anyway, so a reference needs no definition.
    if loaded and not parts:
        return LOADED + ", ".join(loaded)
    return content_of(parts, _BETWEEN)


def _failed(content: str | list[Json]) -> str | list[Json]:
    if isinstance(content, str):
        return content if content.startswith(FAILED) else f"{FAILED}{content}"
    return content_of([text_part(FAILED), *content])


def _block_parts(block: Block, at: str, reading: ContentReader) -> list[Json]:
    """Return a block as texts, an image or a file; empty for omitted types."""
    source = block.source if isinstance(block.source, dict) else {}
    if block.type == IMAGE:
        url = source.get("url") if source.get("type") == "url" else None
        if source.get("type") == "base64" and isinstance(source.get("data"), str):
            url = f"data:;base64,{source['data']}"
        return [image_part(IMAGE, url, None, at)]
    if block.type == DOCUMENT:
        return _document(block, source, at)
    text = _text(block, at, reading)
    return [text_part(text)] if text else []


def _document(block: Block, source: Json, at: str) -> list[Json]:
    match source:
        case {"type": "text", "data": str(text)}:
            return [text_part(text)]
        case {"type": "content", "content": content}:
            return [text_part(text) for text in _texts(content)]
        case {"type": "base64", "data": data}:
            return [file_part(DOCUMENT, data, block.title, at, source.get("media_type"))]
        case _:
            name = block.title or source.get("url") or source.get("file_id")
            return [file_part(DOCUMENT, None, name, at)]


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return [text for text in texts if isinstance(text, str)]


def _text(block: Block, at: str, reading: ContentReader) -> str:
    """Return the text of a block; empty for omitted types.

    Raises BadRequest for images and media.
    """
    match block.type:
        case kind if kind in IMAGES:
            raise field_error("image.role", at)
        case kind if kind in MEDIA:
            raise field_error("request.media", at, type=kind)
        case "document":
            source = block.source if isinstance(block.source, dict) else {}
            if source.get("type") in ("text", "content"):
                return _BETWEEN.join(part["text"] for part in _document(block, source, at))
            return reading.replace(at, block.type)
        case "search_result" if isinstance(block.content, list):
            found = [block.title, block.source if isinstance(block.source, str) else None]
            found += [part.text for part in block.content]
            return _BETWEEN.join(filter(None, found))
        case "compaction" if isinstance(block.content, str):
            return block.content
        case "text" if block.text is None:
            raise field_error("request.missing", f"{at}.text")
        case "tool_addition" if "definition" in (block.tool or {}):
            return ""
    if block.text is None:
        reading.leave_out(at, block.type)
    return block.text or ""
