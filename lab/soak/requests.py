"""The requests of the soak: chat, tools, schemas, long prompts, cancelled and resumed streams.

A request is a function of its number, so it can be sent again later and its answer compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from lab.bench.workloads import prompts
from lab.fuzz.token_requests import SCHEMA, STRATEGIES, TOOL
from omlx.measure.texts import TEXTS

Json = dict[str, Any]

KINDS: Final = ("chat", "chat", "chat", "tools", "schema", "cancel", "resume", "long")
REPEATED: Final = 160
"""Numbers below it are drawn again and again; each other one is sent once."""

REPEAT_SHARE: Final = 0.4
SHARED_DOCUMENTS: Final = 6
LONG_WORDS: Final = (200, 500)
CHAT_TOKENS: Final = (8, 24, 48, 96)


@dataclass(frozen=True)
class SoakRequest:
    """`body` is for `chat.completions.create`; a stream is cut after `cut` events, if it is set."""

    number: int
    kind: str
    body: Json
    cut: int | None = None


def soak_request(number: int, model: str) -> SoakRequest:
    """Return request `number` for a model."""
    rng = Random(number)
    kind = rng.choice(KINDS)
    content = _document(rng) if kind == "long" else _question(rng)
    body: Json = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "seed": rng.getrandbits(32),
        "temperature": rng.choice((0, 0.7, 1.0)),
        "max_tokens": 200 if kind in ("cancel", "resume") else rng.choice(CHAT_TOKENS),
        "stream": kind in ("cancel", "resume") or rng.random() < 0.5,
        "logprobs": True,
        "speculation": rng.choice(("auto", "auto", *STRATEGIES)),
    }
    if rng.random() < 0.5:
        body["reasoning_effort"] = "none"
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if kind == "tools":
        body |= {"tools": [TOOL], "tool_choice": rng.choice(("required", "auto"))}
    if kind == "schema":
        schema = {"name": "answer", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    cut = rng.randint(1, 40) if kind in ("cancel", "resume") else None
    return SoakRequest(number, kind, body, cut)


def _question(rng: Random) -> str:
    return rng.choice(prompts(rng.choice(("edit", "open"))))


def _document(rng: Random) -> str:
    """A text of 200 to 500 words, one of a few or a new one, and a question about it."""
    shared = rng.random() < 0.5
    words = Random(rng.randrange(SHARED_DOCUMENTS) if shared else rng.random())
    text = words.choices(_words(), k=words.randint(*LONG_WORDS))
    return f"{' '.join(text)}\n\n{_question(rng)}"


def _words() -> list[str]:
    return (TEXTS / "functions.txt").read_text(encoding="utf-8").split()
