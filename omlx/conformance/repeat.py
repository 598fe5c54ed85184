"""Checks that an answer depends on its request alone: repeatability, seeds, cached prompts."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from omlx.conformance.answer import check_equal
from omlx.conformance.client import Client, Json
from omlx.conformance.company import TOPICS, company
from omlx.conformance.outcome import Failed, NotSupported
from omlx.conformance.questions import GREEDY, SAMPLED, ask, counts

REPEATS: Final = 3
SEEDS: Final = 4
_RULES: Final = "You answer in short sentences, and you are polite. "
_RULE_COUNT: Final = 40


def repeats_greedy(client: Client) -> str:
    return _repeats(client, GREEDY)


def repeats_seed(client: Client) -> str:
    return _repeats(client, SAMPLED)


def greedy_in_company(client: Client) -> str:
    return _in_company(client, GREEDY)


def seed_in_company(client: Client) -> str:
    return _in_company(client, SAMPLED)


def seeds_differ(client: Client) -> str:
    """Hot, so that a model which is sure of its answer has several."""
    fields = {**SAMPLED, "temperature": 1.5}
    answers = {ask(client, **{**fields, "seed": seed}).written for seed in range(SEEDS)}
    if len(answers) == 1:
        raise Failed(f"{SEEDS} seeds, one answer")
    return f"{len(answers)} answers from {SEEDS} seeds"


def cached_tokens(client: Client) -> str:
    """A prompt that is new, the same again, and a second turn that begins with it."""
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


def _repeats(client: Client, fields: Json) -> str:
    first, *others = [ask(client, **fields) for _ in range(REPEATS)]
    for other in others:
        check_equal(first, other)
    return f"{REPEATS} equal answers"


def _in_company(client: Client, fields: Json) -> str:
    alone = ask(client, **fields)
    with company(client):
        together = ask(client, **fields)
    check_equal(alone, together)
    return f"equal beside {len(TOPICS)} other streams"
