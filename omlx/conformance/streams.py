"""Checks of what surrounds the text: streams, usage, stop strings."""

from __future__ import annotations

from typing import Final

from omlx.conformance.answer import Answer, check_equal
from omlx.conformance.client import Client
from omlx.conformance.outcome import Failed, NotSupported
from omlx.conformance.questions import (
    GREEDY,
    LONG,
    QUESTION,
    SAMPLED,
    TOKENS,
    ask,
    ask_stream,
    counts,
)

_STOP_LENGTH: Final = 3
"""Characters of the stop string, which is taken from an answer."""


def stream_equals_whole(client: Client) -> str:
    for fields in (GREEDY, SAMPLED):
        answer = ask(client, **fields)
        check_equal(answer, ask_stream(client, **fields))
    return f"{len(answer.written)} characters, finish_reason {answer.finish}"


def usage_adds_up(client: Client) -> str:
    answer = ask(client, **GREEDY)
    prompt, completion, total = counts(answer)
    if prompt + completion != total:
        raise Failed(f"{prompt} + {completion} tokens are {total}")
    if completion > TOKENS or (answer.finish == "length" and completion != TOKENS):
        raise Failed(f"{completion} tokens, max_tokens {TOKENS}, finish_reason {answer.finish}")
    longer = [{"role": "user", "content": QUESTION[0]["content"] * 2}]
    more, *_ = counts(ask(client, messages=longer, temperature=0, max_tokens=1))
    if more <= prompt:
        raise Failed(f"{prompt} tokens of a prompt, {more} of one twice as long")
    return f"{prompt} + {completion} tokens"


def stream_usage(client: Client) -> str:
    options = {"include_usage": True}
    streamed = ask_stream(client, **GREEDY, stream_options=options)
    seen, expected = counts(streamed), counts(ask(client, **GREEDY))
    if seen != expected:
        raise Failed(f"{seen} in the stream, {expected} in the body")
    return "as in the body"


def stop_strings(client: Client) -> str:
    fields = {"temperature": 0, "max_tokens": LONG}
    content = ask(client, **fields).content
    stop = _middle(content)
    expected = content[: content.index(stop)]
    _check_stopped("body", ask(client, **fields, stop=[stop]), expected)
    _check_stopped("stream", ask_stream(client, **fields, stop=[stop]), expected)
    return f"ends before {stop!r} after {len(expected)} characters"


def _check_stopped(kind: str, answer: Answer, expected: str) -> None:
    if answer.content != expected:
        ends = repr(answer.content[-20:]), repr(expected[-20:])
        raise Failed(f"{kind}: ends with {ends[0]}, should with {ends[1]}")
    if answer.finish != "stop":
        raise Failed(f"{kind}: finish_reason {answer.finish}")


def _middle(content: str) -> str:
    """Return a stop string from the middle of a text, that begins and ends within words."""
    for place in range(len(content) // 2, len(content) - _STOP_LENGTH):
        text = content[place - 1 : place + _STOP_LENGTH]
        if text and not any(map(str.isspace, text)):
            return text[1:]
    raise NotSupported("the answer has too little text")
