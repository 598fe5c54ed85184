"""The requests that checks send, and what they read in answers."""

from __future__ import annotations

import json
from typing import Any, Final

from omlx.conformance.answer import Answer, assembled, whole
from omlx.conformance.client import Client, Json
from omlx.conformance.outcome import Failed, NotSupported

TOKENS: Final = 48
LONG: Final = 512
"""Tokens where a model may reason first."""

SEED: Final = 7
GREEDY: Final[Json] = {"temperature": 0, "max_tokens": TOKENS}
SAMPLED: Final[Json] = {"temperature": 0.8, "seed": SEED, "max_tokens": TOKENS}
QUESTION: Final = [{"role": "user", "content": "Write five lines about a river and a mountain."}]
SHOWN: Final = 60
"""Characters of an answer that are repeated."""


def ask(client: Client, **fields: Any) -> Answer:
    """Return a whole answer to the question, or to other `messages`. Raises as `Client.chat`."""
    return whole(client.chat(**{"messages": QUESTION, **fields}))


def ask_stream(client: Client, **fields: Any) -> Answer:
    """Return the same from a stream, assembled. Raises as `Client.stream`."""
    return assembled(client.stream(**{"messages": QUESTION, **fields}))


def counts(answer: Answer) -> tuple[int, int, int]:
    """Return the tokens of prompt, completion and both. Raises NotSupported without them, Failed
    for others than positive whole numbers.
    """
    if not answer.usage:
        raise NotSupported("no usage")
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    prompt, completion, total = (_count(answer.usage, name) for name in names)
    return prompt, completion, total


def _count(usage: Json, name: str) -> int:
    count = usage.get(name)
    if not isinstance(count, int) or count <= 0:
        raise Failed(f"usage is {json.dumps(usage)[:SHOWN]}")
    return count


def json_object(text: str) -> Json:
    """Return the object that a text is. Raises Failed for another one."""
    try:
        record = json.loads(text)
    except ValueError:
        raise Failed(f"no JSON: {text[:SHOWN]!r}") from None
    if not isinstance(record, dict):
        raise Failed(f"no JSON object: {text[:SHOWN]!r}")
    return record
