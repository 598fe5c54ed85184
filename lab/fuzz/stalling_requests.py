"""Requests that could keep a server busy: large, nested, or costly to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

CHAT: Final = "/v1/chat/completions"
ENDLESS, LARGE = "endless", "large"
TEMPLATES: Final[Mapping[str, str]] = {
    ENDLESS: "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    LARGE: "{{ 'x' * 400000000 }}",
}
"""Chat templates by the name of their model."""


@dataclass(frozen=True, slots=True)
class StallingRequest:
    """A request for `model`. `quick`: part of the slice that CI runs."""

    name: str
    path: str
    content: Callable[[], bytes]
    model: str
    quick: bool = False


def stalling_requests(model: str) -> list[StallingRequest]:
    """Return all of them, for a model that answers."""

    def body(**fields: Any) -> bytes:
        return json.dumps({"model": model, "max_tokens": 1, **fields}, ensure_ascii=False).encode()

    def chat(content: Any = "hi", **fields: Any) -> bytes:
        return body(messages=[{"role": "user", "content": content}], **fields)

    def listed(field: str, item: str, count: int, **fields: Any) -> bytes:
        """A list of equal items, without building them."""
        start = body(**fields)[:-1] + f', "{field}": ['.encode()
        return start + b",".join([item.encode()] * count) + b"]}"

    said = '{"role": "user", "content": "a"}'
    part = '{"type": "text", "text": "a"}'

    def parts(count: int) -> bytes:
        start = body()[:-1] + b', "messages": [{"role": "user", "content": ['
        return start + b",".join([part.encode()] * count) + b"]}]}"

    def forced(count: int, size: int) -> bytes:
        return chat(tools=tools(count, size), tool_choice="required")

    def formed(**schema: Any) -> bytes:
        described = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return chat(response_format=described)

    keys = {f"key{i}": "v" for i in range(99_000)}
    hello = [{"role": "user", "content": "hi"}]
    bomb = "(a{1000}){1000}"
    cases: list[tuple[str, str, Callable[[], bytes], bool]] = [
        ("30 MB of text", CHAT, lambda: chat("The log says no. " * 1_760_000), True),
        ("5 MB of text", CHAT, lambda: chat("The log says no. " * 290_000), True),
        ("one word of 10 MB", CHAT, lambda: chat("a" * 10_000_000), False),
        ("30 MB of spaces", CHAT, lambda: chat(" " * 30_000_000), False),
        ("10 MB of combining marks", CHAT, lambda: chat("a\u0316\u0301" * 2_000_000), True),
        ("10 MB of compatibility forms", CHAT, lambda: chat("\ufdfa" * 3_300_000), False),
        ("100,000 messages", CHAT, lambda: listed("messages", said, 100_000), True),
        ("24,000 messages", CHAT, lambda: listed("messages", said, 24_000), False),
        ("600,000 parts", CHAT, lambda: parts(600_000), True),
        ("24,000 parts", CHAT, lambda: parts(24_000), False),
        (
            "1,000,000 stop strings",
            CHAT,
            lambda: listed("stop", '"a"', 10**6, messages=hello),
            True,
        ),
        ("64 stop strings of 400 KB", CHAT, lambda: chat(stop=["x" * 400_000] * 64), False),
        ("a prediction of 5 MB", CHAT, lambda: chat(prediction=predicted(5_000_000)), True),
        ("1,000 tools of 4 KB", CHAT, lambda: forced(1_000, 4_000), True),
        ("1,000 tools of 400 bytes", CHAT, lambda: forced(1_000, 400), False),
        ("1,024 long names", CHAT, lambda: chat(tools=tools(1_024, 50, "n" * 120)), False),
        ("a tool name of 1 MB", CHAT, lambda: chat(tools=tools(1, 50, "n" * 10**6)), False),
        ("a regex that repeats", CHAT, lambda: chat(guided_regex=bomb), True),
        ("a regex 100 deep", CHAT, lambda: chat(guided_regex="(" * 100 + "a" + "){9}" * 100), True),
        ("a pattern that repeats", CHAT, lambda: formed(type="string", pattern=bomb), False),
        ("a schema of 4,000 fields", CHAT, lambda: formed(**fields(4_000)), False),
        ("500 alternatives", CHAT, lambda: formed(anyOf=[fields(20)] * 500), False),
        (
            "25,000 choices",
            CHAT,
            lambda: chat(guided_choice=[f"w{i}" for i in range(25_000)]),
            False,
        ),
        ("a grammar of 200 KB", CHAT, lambda: chat(guided_grammar=left_recursive(10_000)), False),
        ("100,000 brackets", CHAT, lambda: chat()[:-1] + b', "x": ' + b"[" * 100_000, True),
        (
            "99,000 biases",
            CHAT,
            lambda: chat(logit_bias={str(i): 1 for i in range(99_000)}),
            False,
        ),
        ("99,000 variables", CHAT, lambda: chat(chat_template_kwargs=keys), False),
        ("99,000 unknown fields", CHAT, lambda: chat(**keys), False),
        ("99,000 metadata", "/v1/responses", lambda: body(input="hi", metadata=keys), False),
        ("a number of 10 MB", CHAT, lambda: chat()[:-1] + b', "x": ' + b"1" * 10**7 + b"}", False),
        ("1,000,000 texts", "/v1/embeddings", lambda: listed("input", '"a"', 10**6), False),
        ("1,000,000 ids", "/v1/completions", lambda: listed("prompt", "7", 10**6), False),
        ("5,000,000 ids", "/detokenize", lambda: listed("tokens", "7", 5 * 10**6), True),
        ("1,000,000 ids to text", "/detokenize", lambda: listed("tokens", "7", 10**6), False),
        ("5 MB to ids", "/tokenize", lambda: body(prompt="The log says no. " * 290_000), False),
        ("30 MB to count", "/v1/messages/count_tokens", lambda: chat("word " * 6_000_000), False),
    ]
    found = [
        StallingRequest(name, path, content, model, quick) for name, path, content, quick in cases
    ]
    for name in TEMPLATES:
        content = json.dumps({"model": name, "messages": hello}).encode()
        found.append(
            StallingRequest(f"a template: {name}", CHAT, lambda content=content: content, name)
        )
    return found


def fields(count: int, text: str = "") -> dict[str, Any]:
    properties = {f"p{i}": {"type": "string", "description": text} for i in range(count)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def tools(count: int, size: int, name: str = "tool") -> list[dict[str, Any]]:
    """Functions with parameters of about `size` bytes."""
    parameters = fields(max(1, size // 100), "d" * 50)
    return [
        {"type": "function", "function": {"name": f"{name}{i}", "parameters": parameters}}
        for i in range(count)
    ]


def predicted(size: int) -> dict[str, str]:
    return {"type": "content", "content": "The log says no. " * (size // 17)}


def left_recursive(rules: int) -> str:
    lines = [f"r{i}: r{i + 1} | r{i} 'a'".replace("'", '"') for i in range(rules)]
    return "\n".join(["start: r0", *lines, f'r{rules}: "b"'])
