"""Transcripts: conversations as one text, in the notation of pi's compactions.

    <conversation>  [User]: …  [Assistant]: …  [Tool result]: …  </conversation>  request

pi summarises the messages before the last 20,000 tokens, or as its user has set; if those begin
inside a turn, the turns before it and the beginning of this one in two requests. Lengths are
JavaScript's: UTF-16 units.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from omlx.text.template.render import Message, texts_of

OPENING: Final = "<conversation>\n"
CLOSING: Final = "\n</conversation>\n\n"
_GAP: Final = "\n\n"

KEPT_TOKENS: Final = 20_000
RESULT_CHARACTERS: Final = 2_000
CHARACTERS_PER_TOKEN: Final = 4

ASKS: Final = {
    "turns": "The messages above are a conversation to summarize",
    "more turns": "The messages above are NEW conversation messages to incorporate",
    "turn": "This is the PREFIX of a turn that was too large to keep",
}
"""Sentences of pi's requests, about turns, turns behind a summary, the beginning of a turn."""

STARTS: Final = 64
"""Turns tried as the first of a transcript, at most."""

SUMMARY: Final = "was compacted into the following summary:\n\n<summary>\n"
_SUMMARY_END: Final = "\n</summary>"
_PREVIOUS: Final = "<previous-summary>\n{}\n</previous-summary>\n\n"
_NONE: Final = _PREVIOUS.format("")


def find(text: str, messages: Sequence[Message]) -> tuple[str, int] | None:
    """Return the request behind a transcript, and the number of later tokens.

    None for texts without a transcript of `messages`. A summary in the request becomes empty.
    """
    if not text.startswith(OPENING) or CLOSING not in text:
        return None
    summary, turns = _parts(messages)
    written = [_GAP.join(_entries([one])) for one in turns]
    starts = (
        start
        for start, message in enumerate(turns)
        if not start or (_begins(message) and text.startswith(written[start], len(OPENING)))
    )
    for start in islice(starts, STARTS):
        at = len(OPENING)
        for end in range(start, len(turns)):
            if not text.startswith(written[end], at):
                break
            at += len(written[end])
            if written[end] and text.startswith(CLOSING, at):
                ask = text[at + len(CLOSING) :].replace(_PREVIOUS.format(summary), _NONE, 1)
                known = kind_of(ask) != "more turns" or _NONE in ask
                return (ask, sum(map(tokens_of, turns[end + 1 :]))) if known else None
            at += len(_GAP) if written[end] else 0
    return None


def kind_of(ask: str) -> str | None:
    """Return the name in `ASKS` of a request."""
    return next((kind for kind, sentence in ASKS.items() if sentence in ask), None)


def compaction_text(ask: str, kept: int, messages: Sequence[Message]) -> str | None:
    """Return pi's message: a transcript without the last `kept` tokens, and the request.

    None if pi would not make that request about this conversation.
    """
    summary, turns = _parts(messages)
    cut, kind = _cut(turns, kept), kind_of(ask)
    start = max((at for at in range(cut + 1) if _begins(turns[at])), default=cut) if turns else 0
    if kind == "turn":
        chosen = turns[start:cut]
    else:
        chosen = turns[:start] if kind == ("more turns" if summary else "turns") else ()
    if not chosen:
        return None
    ask = ask.replace(_NONE, _PREVIOUS.format(summary), 1)
    return OPENING + _GAP.join(_entries(chosen)) + CLOSING + ask


def _parts(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Return the summary of an earlier compaction, and the messages behind it."""
    text = _text(messages[0]) if messages else ""
    summary, closed, _ = text.partition(SUMMARY)[2].rpartition(_SUMMARY_END)
    return (summary, messages[1:]) if closed else ("", messages)


def _begins(message: Message) -> bool:
    return bool(message["role"] == "user")


def _cut(messages: Sequence[Message], kept: int) -> int:
    """Return the index of the first message that stays as it is."""
    at, tokens = len(messages), 0
    while at and tokens < kept:
        at -= 1
        tokens += tokens_of(messages[at])
    if tokens < kept:
        return 0
    behind = (i for i in range(at, len(messages)) if messages[i]["role"] != "tool")
    return next(behind, 0)  # a result stays with its call


def tokens_of(message: Message) -> int:
    """Return pi's estimate of a message's tokens."""
    texts = [_text(message), str(message.get("reasoning_content", ""))]
    for call in message.get("tool_calls", ()):
        texts += [call["function"]["name"], _json(call["function"]["arguments"])]
    return -(-sum(map(_units, texts)) // CHARACTERS_PER_TOKEN)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _entries(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        text = _text(message)
        match message["role"]:
            case "user" if text:
                yield f"[User]: {text}"
            case "tool" if text:
                yield f"[Tool result]: {_truncated(text)}"
            case "assistant":
                if reasoning := message.get("reasoning_content"):
                    yield f"[Assistant thinking]: {reasoning}"
                if text:
                    yield f"[Assistant]: {text}"
                if calls := [_call(call["function"]) for call in message.get("tool_calls", ())]:
                    yield f"[Assistant tool calls]: {'; '.join(calls)}"


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, Mapping):
        return f"{function['name']}({arguments})"
    values = ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
    return f"{function['name']}({values})"


def _truncated(text: str) -> str:
    more = _units(text) - RESULT_CHARACTERS
    if more <= 0:
        return text
    units = text.encode("utf-16-le", "surrogatepass")[: 2 * RESULT_CHARACTERS]
    beginning = units.decode("utf-16-le", "surrogatepass")
    return f"{beginning}\n\n[... {more} more characters truncated]"


def _text(message: Message) -> str:
    return "".join(texts_of(message.get("content")))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
