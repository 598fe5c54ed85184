"""Conformance checks: each sends requests to a server and compares the answers."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import uuid4

from lab.conformance.answers import (
    GREEDY,
    LONG,
    QUESTION,
    SAMPLED,
    SEED,
    SHOWN,
    TOKENS,
    Answer,
    ask,
    ask_stream,
    check_equal,
    counts,
)
from lab.conformance.client import Client, Failed, Json, NotSupported, Outcome, Result, parsed

TOPICS: Final = ("a harbour at night", "how bread is baked", "two trains and a bridge")
"""Prompts of the concurrent streams — one stream per topic."""

ROUNDS: Final = 4
"""Answers — length of each concurrent stream if the block does not end before."""

_FIELDS: Final[dict[str, Any]] = {"temperature": 1.0, "max_tokens": 256}


@contextmanager
def company(client: Client) -> Iterator[None]:
    """Keep concurrent streams running during the block, which starts once all of them generate.

    Raises the errors of `Client.stream` if a stream fails.
    """
    over = threading.Event()
    begun = [threading.Event() for _ in TOPICS]
    with ThreadPoolExecutor(len(TOPICS)) as threads:
        streams = [
            threads.submit(_read, client, number, first, over) for number, first in enumerate(begun)
        ]
        try:
            for first in begun:
                first.wait()
            yield
        finally:
            over.set()
    for stream in streams:
        stream.result()


def _read(client: Client, number: int, begun: threading.Event, over: threading.Event) -> None:
    """Stream `ROUNDS` answers in sequence until `over`; set `begun` at the first chunk or a
    failure.
    """
    question = [{"role": "user", "content": f"Write a long story about {TOPICS[number]}."}]
    try:
        for seed in range(ROUNDS):
            answer = client.stream(messages=question, seed=10 * number + seed, **_FIELDS)
            with closing(answer) as chunks:
                for _ in chunks:
                    begun.set()
                    if over.is_set():
                        return
    finally:
        begun.set()


REPEATS: Final = 3
SEEDS: Final = 4
_RULES: Final = "You answer in short sentences, and you are polite. "
_RULE_COUNT: Final = 40


def seeds_differ(client: Client) -> str:
    # High temperature: a model that is sure of its answer must still give several.
    fields = {**SAMPLED, "temperature": 1.5}
    answers = {ask(client, **{**fields, "seed": seed}).written for seed in range(SEEDS)}
    if len(answers) == 1:
        raise Failed(f"{SEEDS} seeds, one answer")
    return f"{len(answers)} answers from {SEEDS} seeds"


def cached_tokens(client: Client) -> str:
    """Compare a new prompt, the same prompt again, and a second turn extending it."""
    rules = f"Conversation {uuid4().hex}. {_RULES * _RULE_COUNT}"
    messages = [
        {"role": "system", "content": rules},
        {"role": "user", "content": "Name a colour."},
    ]
    cold = ask(client, **GREEDY, messages=messages)
    check_equal(cold, ask(client, **GREEDY, messages=messages))
    messages.append({"role": "assistant", "content": cold.content or "Red."})
    messages.append({"role": "user", "content": "Name another one."})
    turns = [ask(client, **GREEDY, messages=messages) for _ in range(2)]
    check_equal(*turns)
    new = _cached(cold.usage)
    if new is not None and 2 * new > counts(cold)[0]:
        raise Failed(f"{new} of {counts(cold)[0]} tokens of a new prompt cached")
    cached, prompt = _cached(turns[0].usage), counts(turns[0])[0]
    if not cached:
        raise NotSupported(f"equal answers, cached_tokens {cached}")
    if cached > prompt:
        raise Failed(f"{cached} of {prompt} tokens of a second turn cached")
    return f"{cached} of {prompt} tokens of the second turn, equal answers"


def _cached(usage: Json) -> int | None:
    details: Json = usage.get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


def repeats(client: Client, fields: Json) -> str:
    first, *others = [ask(client, **fields) for _ in range(REPEATS)]
    for other in others:
        check_equal(first, other)
    return f"{REPEATS} equal answers"


def beside(client: Client, fields: Json) -> str:
    alone = ask(client, **fields)
    with company(client):
        together = ask(client, **fields)
    check_equal(alone, together)
    return f"equal beside {len(TOPICS)} other streams"


_STOP_LENGTH: Final = 3
"""Characters of the stop string, which is cut from an answer."""


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
    """Return a stop string from the middle of `content`, starting and ending inside words.

    Raises NotSupported if the answer is too short.
    """
    for place in range(len(content) // 2, len(content) - _STOP_LENGTH):
        text = content[place - 1 : place + _STOP_LENGTH]
        if text and not any(map(str.isspace, text)):
            return text[1:]
    raise NotSupported("the answer has too little text")


NAME: Final = "set_alarm"
ARGUMENTS: Final[Json] = {
    "type": "object",
    "properties": {"day": {"enum": ["today", "tomorrow"]}, "loud": {"type": "boolean"}},
    "required": ["day", "loud"],
    "additionalProperties": False,
}
SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "bright": {"type": "boolean"}},
    "required": ["colour", "bright"],
    "additionalProperties": False,
}
CALLING: Final[Json] = {
    "messages": [{"role": "user", "content": "Wake me up tomorrow, and be loud, please."}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": NAME,
                "description": "Set an alarm.",
                "parameters": ARGUMENTS,
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": NAME}},
    "temperature": 0,
    "seed": SEED,
    "max_tokens": LONG,
}
FORMAT: Final[Json] = {
    "type": "json_schema",
    "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
}
SCHEMA_SEEDS: Final = 3


def tool_call(client: Client) -> str:
    return _check_call(ask(client, **CALLING))


def tool_stream(client: Client) -> str:
    streamed = ask_stream(client, **CALLING)
    _check_call(streamed)
    check_equal(ask(client, **CALLING), streamed)
    return "as in the body"


def schema_holds(client: Client) -> str:
    # QUESTION asks for prose: no model follows the schema unless the server enforces it.
    fields = {**SAMPLED, "max_tokens": LONG, "response_format": FORMAT}
    answers = [ask(client, **{**fields, "seed": seed}) for seed in range(SCHEMA_SEEDS)]
    answers.append(ask_stream(client, **fields))
    for answer in answers:
        _check_form(parsed(answer.content), SCHEMA)
        if answer.finish != "stop":
            raise Failed(f"finish_reason {answer.finish}")
    return f"{len(answers)} objects such as {answers[0].content[:SHOWN]}"


def _check_call(answer: Answer) -> str:
    if len(answer.calls) != 1:
        text = answer.written[:SHOWN]
        raise Failed(f"{len(answer.calls)} calls where one is required: {text!r}")
    (call,) = answer.calls
    if call.name != NAME or not call.id:
        raise Failed(f"a call of {call.name!r} with the id {call.id!r}")
    _check_form(parsed(call.arguments), ARGUMENTS)
    if answer.finish not in ("tool_calls", "stop"):  # OpenAI's ends with "stop" if a name is forced
        raise Failed(f"finish_reason {answer.finish}")
    return f"{call.name}({call.arguments[:SHOWN]}), finish_reason {answer.finish}"


def _check_form(record: Json, schema: Json) -> None:
    """Raise Failed unless `record` matches ARGUMENTS or SCHEMA: enums and booleans only."""
    if set(record) != set(schema["required"]):
        raise Failed(f"properties {sorted(record)} where {schema['required']} are required")
    for name, form in schema["properties"].items():
        allowed = [json.dumps(value) for value in form.get("enum", (True, False))]
        if json.dumps(record[name]) not in allowed:
            raise Failed(f"{name} is {record[name]!r}")


INVALID: Final[dict[str, Json]] = {
    "messages": {**GREEDY, "messages": "none"},
    "temperature": {"messages": QUESTION, "temperature": "warm"},
    "stream": {**GREEDY, "messages": "none", "stream": True},
}
"""Invalid requests, by the name of the invalid field."""


def errors_have_a_form(client: Client) -> str:
    bodies = {name: json.dumps({"model": client.model, **body}) for name, body in INVALID.items()}
    for name, body in {**bodies, "JSON": "{"}.items():
        status, record = client.post(body)
        if status != 400:
            raise Failed(f"invalid {name}: status {status}, not 400")
        error = record.get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise Failed(f"invalid {name}: no error.message in {json.dumps(record)[:80]}")
    return f"{len(bodies) + 1} invalid requests, each 400 with error.message"


Run: TypeAlias = Callable[[Client], str]
"""A check: returns evidence for the report if it passes.

Raises Failed, NotSupported, and the errors of `http.client`.
"""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    title: str
    run: Run


CHECKS: Final = (
    Check("greedy", "Temperature 0 repeats", partial(repeats, fields=GREEDY)),
    Check("seed", "Temperature 0.8 with a seed repeats", partial(repeats, fields=SAMPLED)),
    Check(
        "greedy_company",
        "Temperature 0 beside other requests",
        partial(beside, fields=GREEDY),
    ),
    Check(
        "seed_company",
        "Temperature 0.8 beside other requests",
        partial(beside, fields=SAMPLED),
    ),
    Check("seeds", "Other seeds, other answers", seeds_differ),
    Check("cached", "Cached tokens of a second turn", cached_tokens),
    Check("stream", "Stream and whole answer", stream_equals_whole),
    Check("usage", "Usage adds up", usage_adds_up),
    Check("stream_usage", "Usage of a stream", stream_usage),
    Check("stop", "Stop strings", stop_strings),
    Check("tool_call", "Tool call of a named function", tool_call),
    Check("tool_stream", "Tool call in a stream", tool_stream),
    Check("schema", "Structured output (json_schema)", schema_holds),
    Check("errors", "Errors of invalid requests", errors_have_a_form),
)


def judge(check: Check, client: Client) -> Result:
    """Run a check. Connection errors count as failures of the server."""
    try:
        outcome, seen = Outcome.PASSED, check.run(client)
    except NotSupported as refusal:
        outcome, seen = Outcome.NOT_SUPPORTED, str(refusal)
    except Failed as failure:
        outcome, seen = Outcome.FAILED, str(failure)
    except (OSError, http.client.HTTPException) as error:
        outcome, seen = Outcome.FAILED, str(error) or type(error).__name__
    return Result(check.name, check.title, outcome, seen)
