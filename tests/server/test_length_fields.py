"""Fields about the length of an answer: no limit, no end before so many tokens, no end at all."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from omlx.server.dialects.openai.chat_request import ChatMessage
from omlx.server.request.content import ContentReader
from tests.lanes import few
from tests.server.dialects import user
from tests.server.running import TARGET

ASKED: list[Any] = user("Say hello.")
STRATEGIES = ("off", "draft", "ngram", "auto")


def chat(client: OpenAI, **extra: Any) -> Any:
    fields = {"temperature": 0.0, "seed": 3, "max_tokens": 40} | extra.pop("fields", {})
    return client.chat.completions.create(
        model=TARGET, messages=ASKED, extra_body=extra, logprobs=True, **fields
    )


def told(answer: Any) -> tuple[list[str], int, str]:
    """Tokens, their count and the reason of the end."""
    (choice,) = answer.choices
    tokens = [entry.token for entry in choice.logprobs.content]
    return tokens, answer.usage.completion_tokens, choice.finish_reason


@pytest.mark.parametrize("temperature", few((0.0, 0.9), 0.0))
def test_end_tokens_wait_for_min_tokens_under_every_strategy(
    client: OpenAI, temperature: float
) -> None:
    fields = {"temperature": temperature, "max_tokens": 400}
    tokens, count, reason = told(chat(client, speculation="off", fields=fields))
    assert reason == "stop"
    # The end token counts as one.
    assert told(chat(client, min_tokens=count - 1, fields=fields)) == (tokens, count, "stop")
    least = count + 9
    answers = [
        told(chat(client, min_tokens=least, speculation=strategy, fields=fields))
        for strategy in STRATEGIES
    ]
    assert answers[0][0][: len(tokens)] == tokens
    assert answers[0][1] > least
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", few((0.0, 0.9), 0.9))
def test_an_answer_that_ignores_the_end_has_max_tokens(client: OpenAI, temperature: float) -> None:
    fields = {"temperature": temperature, "max_tokens": 120}
    answers = [
        told(chat(client, ignore_eos=True, speculation=strategy, fields=fields))
        for strategy in STRATEGIES
    ]
    assert answers[0][1:] == (120, "length")
    assert all(answer == answers[0] for answer in answers)


def test_completions_have_the_same_fields(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": TARGET, "prompt": "def main", "max_tokens": 60}
    answer = client.completions.create(**fields, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 60
    answer = client.completions.create(**fields, extra_body={"min_tokens": 60})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 60


def test_a_form_that_is_complete_ends_before_min_tokens(client: OpenAI) -> None:
    extra = {"min_tokens": 30, "guided_choice": ["yes", "no"], "reasoning_effort": "none"}
    answer = chat(client, **extra)
    assert answer.choices[0].message.content in ("yes", "no")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_minus_one_is_none(client: OpenAI, field: str) -> None:
    asked: Any = {"model": TARGET, "messages": ASKED, "temperature": 0}
    unlimited = client.chat.completions.create(**asked)
    answer = client.chat.completions.create(**asked, **{field: -1})
    assert answer.choices == unlimited.choices


@pytest.mark.slow
def test_completions_and_responses_without_a_limit(client: OpenAI) -> None:
    extra: Any = {"max_tokens": -1, "temperature": 0}
    with client.completions.create(model=TARGET, prompt="def main", stream=True, **extra) as stream:
        text = "".join(chunk.choices[0].text for chunk, _ in zip(stream, range(40), strict=False))
    assert len(text.encode()) > 16 * 8, "more than sixteen tokens, the default of others"
    response = client.responses.create(
        model=TARGET, input="Say hello.", max_output_tokens=-1, temperature=0
    )
    assert response.status == "completed"


@pytest.mark.parametrize(
    "extra",
    [
        {"stop": ""},
        {"stop": [""]},
        {"stop": []},
        {"repetition_penalty": 0},
        {"temperature": 2.5},
        {"min_tokens": 0, "ignore_eos": False},
    ],
)
def test_values_that_clients_send_for_empty_fields_are_taken(
    client: OpenAI, extra: dict[str, Any]
) -> None:
    answer = client.chat.completions.create(
        model=TARGET, messages=ASKED, max_tokens=3, extra_body=extra
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 3


def test_empty_stops_beside_others_are_left_out(spelling: OpenAI) -> None:
    answer = spelling.chat.completions.create(
        model=TARGET, messages=user("one two three"), stop=["", " three"], reasoning_effort="none"
    )
    assert answer.choices[0].message.content == "one two"


def test_any_is_required(spelling: OpenAI) -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    function: Any = {"type": "function", "function": {"name": "look", "parameters": nothing}}
    answer = spelling.chat.completions.create(
        model=TARGET,
        messages=user("hello"),
        tools=[function],
        extra_body={"tool_choice": "any"},
        temperature=0,
        max_tokens=200,
    )
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("thought", ["I see.", [{"type": "text", "text": "I see."}]])
def test_a_thinking_part_is_reasoning(thought: Any) -> None:
    part = {"type": "thinking", "thinking": thought}
    message = {"role": "assistant", "content": [part, {"type": "text", "text": "Yes."}]}
    read = ChatMessage.model_validate(message)
    assert read.rendered(0, ContentReader()) == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "I see.",
    }
