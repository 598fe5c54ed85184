"""The official client against a real server. The model spells the prompt; all else is real."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from anthropic.types import Message, ThinkingBlock
from pydantic import BaseModel

from omlx.settings.schema import Settings
from tests.schemas import record
from tests.server.dialects import markup, user
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx
from tests.server.spelling import CONTEXT, spelling_pool

TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {"name": "look", "type": "custom", "input_schema": {"type": "object"}},
]
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


def ask(client: Anthropic, says: str, **fields: Any) -> Message:
    fields = {"model": TARGET, "max_tokens": 400, "messages": user(says), **fields}
    return client.messages.create(**fields)


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_sends_whole_conversations(claude: Anthropic, stream: bool) -> None:
    """It would rather have the server keep them."""
    seen = []

    @beta_tool
    def look(at: str) -> str:
        """Looks."""
        seen.append(at)
        return "4 degrees"

    messages: list[Any] = user(markup("look", at="it"))
    runner = claude.beta.messages.tool_runner(
        model=TARGET, max_tokens=100, tools=[look], messages=messages, stream=stream
    )
    last = runner.until_done()
    assert seen == ["it"]
    assert "4 degrees" in last.content[0].text


def test_thinking_that_is_not_shown_comes_back_in_its_signature(claude: Anthropic) -> None:
    says = "<think>\nA deep thought.\n</think>\n\nSo."
    hidden = ask(claude, says, thinking={**THINKING, "display": "omitted"})
    block = hidden.content[0]
    assert isinstance(block, ThinkingBlock)
    assert block.thinking == ""
    shown = ask(claude, says, thinking=THINKING)

    def tokens(answer: Message) -> int:
        return claude.messages.count_tokens(
            model=TARGET,
            messages=[
                {"role": "user", "content": says},
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": "And?"},
            ],
        ).input_tokens

    assert tokens(hidden) == tokens(shown)


def test_a_prefilled_answer_goes_on(claude: Anthropic) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "One, two, three."},
        {"role": "assistant", "content": "One,"},
    ]
    assert ask(claude, "", messages=messages).content[0].text == " two, three."


def test_neighbours_of_one_role_are_one_turn(claude: Anthropic) -> None:
    apart: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
    ]
    assert ask(claude, "", messages=apart).content[0].text == "a\n\nb"


def test_what_claude_code_sends(claude: Anthropic) -> None:
    """Betas, cache control anywhere, metadata, and a billing header that changes with every
    request."""

    def turn(count: int, says: str) -> Any:
        return claude.beta.messages.create(
            model=TARGET,
            max_tokens=100,
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14", "unknown-2030-01-01"],
            system=[
                {
                    "type": "text",
                    "text": f"x-anthropic-billing-header: cc_version={count}; cch={count * 7919}",
                },
                {
                    "type": "text",
                    "text": "You are careful. " * 20,
                    "cache_control": {"type": "ephemeral"},
                },
            ],
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": says,
                            "cache_control": {"type": "ephemeral", "ttl": "1h"},
                        }
                    ],
                }
            ],
            tools=[{**TOOLS[0], "cache_control": {"type": "ephemeral"}}],
            metadata={"user_id": "u"},
            extra_body={"context_management": {"edits": []}},
        )

    first, second = turn(1, "Hello."), turn(2, "Hello.")
    assert first.content[0].text == second.content[0].text == "Hello."
    whole = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == whole
    assert second.usage.cache_read_input_tokens > whole * 0.9


def refusal(client: Anthropic, **fields: Any) -> Any:
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client, "x", **fields)
    body: Any = caught.value.body
    assert body["type"] == "error"
    return caught.value.status_code, body["error"]["type"], body["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": user("a " * CONTEXT)}, "prompt is too long: "),
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 1.5}}, "temperature"),
        ({"tools": [{"input_schema": {"type": "object"}}]}, "tools[0].name"),
        ({"stop_sequences": [str(n) for n in range(65)]}, "stop_sequences"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "jump"}}, "jump"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}},
            "output_config.format.schema cannot be enforced: Invalid type: strin",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "source": {"type": "url", "url": "x"}}],
                    }
                ]
            },
            "messages[0].content[0]: the model omlx-demo/target cannot read",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]}
                ]
            },
            "no tool call 't1'",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b "},
                ]
            },
            "whitespace",
        ),
    ],
)
def test_refusals_are_of_this_api(claude: Anthropic, fields: Any, words: str) -> None:
    error = refusal(claude, **fields)
    assert error[:2] == (400, "invalid_request_error")
    assert words in error[2]


def test_keys_of_either_kind_and_names_that_are_mapped() -> None:
    names = ("claude-*haiku*=" + DRAFT, "claude-*=" + HYBRID)
    settings = Settings(api_key="secret", model_map=names)
    served = {"claude-haiku-9": DRAFT, "claude-opus-9": HYBRID, TARGET: TARGET}
    with omlx(settings, build=spelling_pool) as running:
        for fields in ({"api_key": "secret"}, {"auth_token": "secret", "api_key": None}):
            with Anthropic(base_url=running.url, max_retries=0, **fields) as client:
                for name, model in served.items():
                    assert ask(client, "Hi.", model=name).model == model
                with pytest.raises(anthropic.NotFoundError):
                    ask(client, "Hi.", model="gpt-9")
        with Anthropic(base_url=running.url, api_key="wrong", max_retries=0) as client:
            assert refusal(client)[:2] == (401, "authentication_error")
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.models.list()
            assert caught.value.body["error"]["type"] == "authentication_error"


def test_models_in_the_words_of_this_api(claude: Anthropic) -> None:
    listed = claude.models.list()
    assert {TARGET, DRAFT, HYBRID} <= {model.id for model in listed}
    one = claude.models.retrieve(TARGET)
    assert (one.type, one.id, one.display_name) == ("model", TARGET, TARGET)
    assert one.created_at.year > 2000
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.models.retrieve("org/none")
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")


def test_counting_loads_nothing(speller: Running) -> None:
    with Anthropic(base_url=speller.url, api_key="none") as client:
        ask(client, "x")
        counted = client.messages.count_tokens(
            model=HYBRID, messages=user("x"), tools=TOOLS, system="s"
        )
    assert counted.input_tokens > 20
    assert speller.pool.last_used is not None
    assert speller.pool.last_used.id == TARGET


FORM: Any = {
    "type": "json_schema",
    "schema": record(name={"type": "string"}, age={"type": "integer"}),
}
ADA = json.dumps({"name": "Ada", "age": 36})


class Person(BaseModel):
    name: str
    age: int


def test_an_answer_is_parsed(claude: Anthropic) -> None:
    answer = claude.messages.parse(
        model=TARGET, max_tokens=400, messages=user(f"{ADA} is her name."), output_format=Person
    )
    assert answer.parsed_output == Person(name="Ada", age=36)
    assert answer.stop_reason == "end_turn"
    former = ask(claude, f"{ADA} is her name.", extra_body={"output_format": FORM})
    assert [block.text for block in former.content] == [ADA]
