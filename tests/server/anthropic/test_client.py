"""The official client against a real server. The model spells the prompt; all else is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic, beta_tool
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock

from omlx.settings.schema import Settings
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


@pytest.fixture
def client(speller: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=speller.url, api_key="none", max_retries=0) as client:
        yield client


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def ask(client: Anthropic, says: str, **fields: Any) -> Message:
    fields = {"max_tokens": 400, "messages": [{"role": "user", "content": says}], **fields}
    return client.messages.create(model=TARGET, **fields)


def test_a_message(client: Anthropic) -> None:
    answer = ask(client, "Hello there.")
    assert (answer.type, answer.role, answer.model, answer.id[:4]) == (
        "message",
        "assistant",
        TARGET,
        "msg_",
    )
    assert [
        (block.type, block.text) for block in answer.content if isinstance(block, TextBlock)
    ] == [("text", "Hello there.")]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    assert usage.output_tokens > 2
    counted = client.messages.count_tokens(
        model=TARGET, messages=[{"role": "user", "content": "Hello there."}]
    )
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_thinking_text_and_calls_in_blocks(client: Anthropic) -> None:
    says = f"<think>\nHm.\n</think>\n\nI look.\n{call('get_weather', city='Oslo')}{call('look')}"
    answer = ask(client, says, tools=TOOLS, thinking=THINKING)
    thought, text, one, two = answer.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.thinking, bool(thought.signature)) == ("Hm.", True)
    assert isinstance(text, TextBlock)
    assert text.text == "I look."
    assert isinstance(one, ToolUseBlock)
    assert isinstance(two, ToolUseBlock)
    assert (one.name, one.input, one.id[:6]) == ("get_weather", {"city": "Oslo"}, "toolu_")
    assert (two.name, two.input) == ("look", {})
    assert answer.stop_reason == "tool_use"


def test_events_of_a_stream_come_in_the_documented_order(client: Anthropic) -> None:
    says = f"<think>\nHm.\n</think>\n\nI look.\n{call('get_weather', city='Oslo')}"
    kinds: list[str] = []
    with client.messages.create(
        model=TARGET,
        max_tokens=400,
        messages=[{"role": "user", "content": says}],
        tools=TOOLS,
        thinking=THINKING,
        stream=True,
    ) as stream:
        for event in stream:
            kind = event.type
            if event.type == "content_block_start":
                kind += f" {event.index} {event.content_block.type}"
            if event.type == "content_block_delta":
                kind += f" {event.index} {event.delta.type}"
            if not kinds or kinds[-1] != kind:
                kinds.append(kind)
    assert kinds == [
        "message_start",
        "content_block_start 0 thinking",
        "content_block_delta 0 thinking_delta",
        "content_block_delta 0 signature_delta",
        "content_block_stop",
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_stop",
        "content_block_start 2 tool_use",
        "content_block_delta 2 input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_the_stream_helper_adds_up_to_the_message(client: Anthropic) -> None:
    says = f"<think>\nHm.\n</think>\n\nSee: {call('get_weather', city='Oslo')}"
    with client.messages.stream(
        model=TARGET,
        max_tokens=400,
        messages=[{"role": "user", "content": says}],
        tools=TOOLS,
        thinking=THINKING,
    ) as stream:
        final = stream.get_final_message()
    whole = ask(client, says, tools=TOOLS, thinking=THINKING)
    assert [block.type for block in final.content] == [block.type for block in whole.content]
    assert final.content[0] == whole.content[0]
    assert final.content[1].text == whole.content[1].text == "See:"
    assert final.content[2].input == whole.content[2].input == {"city": "Oslo"}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tool_loop_of_two_turns(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": call("get_weather", city="Oslo")}]
    first = client.messages.create(model=TARGET, max_tokens=100, messages=messages, tools=TOOLS)
    (use,) = first.content
    assert isinstance(use, ToolUseBlock)
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "4 degrees"}],
    }
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(model=TARGET, max_tokens=100, messages=messages, tools=TOOLS)
    assert second.content[0].text == "<tool_response>\n4 degrees\n</tool_response>"
    assert second.usage.cache_read_input_tokens > 0
    assert second.stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_sends_whole_conversations(client: Anthropic, stream: bool) -> None:
    """It would rather have the server keep them."""
    seen = []

    @beta_tool
    def look(at: str) -> str:
        """Looks."""
        seen.append(at)
        return "4 degrees"

    messages: list[Any] = [{"role": "user", "content": call("look", at="it")}]
    runner = client.beta.messages.tool_runner(
        model=TARGET, max_tokens=100, tools=[look], messages=messages, stream=stream
    )
    last = runner.until_done()
    assert seen == ["it"]
    assert "4 degrees" in last.content[0].text


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ["look", "get_weather"]),
        ({"type": "any"}, ["look", "get_weather"]),
        ({"type": "any", "disable_parallel_tool_use": True}, ["look"]),
        ({"type": "tool", "name": "look"}, ["look"]),
        ({"type": "none"}, []),
    ],
)
def test_tool_choice(client: Anthropic, choice: Any, expected: list[str]) -> None:
    says = call("look", at="it") + call("get_weather", city="Oslo")
    answer = ask(client, says, tools=TOOLS, tool_choice=choice)
    assert [block.name for block in answer.content if isinstance(block, ToolUseBlock)] == expected


def test_thinking_that_is_not_shown_comes_back_in_its_signature(client: Anthropic) -> None:
    says = "<think>\nA deep thought.\n</think>\n\nSo."
    hidden = ask(client, says, thinking={**THINKING, "display": "omitted"})
    block = hidden.content[0]
    assert isinstance(block, ThinkingBlock)
    assert block.thinking == ""
    shown = ask(client, says, thinking=THINKING)

    def tokens(answer: Message) -> int:
        return client.messages.count_tokens(
            model=TARGET,
            messages=[
                {"role": "user", "content": says},
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": "And?"},
            ],
        ).input_tokens

    assert tokens(hidden) == tokens(shown)


def test_without_thinking_no_reasoning_is_opened(client: Anthropic) -> None:
    for thinking in ({}, {"thinking": {"type": "disabled"}}):
        assert [block.type for block in ask(client, "Hi.", **thinking).content] == ["text"]
    assert [
        block.type for block in ask(client, "<think>\nHm.", thinking={"type": "adaptive"}).content
    ] == ["thinking"]


def test_reasons_to_stop(client: Anthropic) -> None:
    stopped = ask(client, "One, two, END, three.", stop_sequences=["END", "never"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
    assert stopped.content[0].text == "One, two, "
    assert ask(client, "One, two, three.", max_tokens=2).stop_reason == "max_tokens"


def test_a_prefilled_answer_goes_on(client: Anthropic) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "One, two, three."},
        {"role": "assistant", "content": "One,"},
    ]
    assert ask(client, "", messages=messages).content[0].text == " two, three."


def test_neighbours_of_one_role_are_one_turn(client: Anthropic) -> None:
    apart: list[Any] = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
    ]
    assert ask(client, "", messages=apart).content[0].text == "a\n\nb"


def test_what_claude_code_sends(client: Anthropic) -> None:
    """Betas, cache control anywhere, metadata, and a billing header that changes with every
    request."""

    def turn(count: int, says: str) -> Any:
        return client.beta.messages.create(
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
    ("fields", "status", "kind", "words"),
    [
        (
            {"messages": [{"role": "user", "content": "a " * CONTEXT}]},
            400,
            "invalid_request_error",
            "prompt is too long: ",
        ),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"extra_body": {"temperature": 1.5}}, 400, "invalid_request_error", "temperature"),
        (
            {"tools": [{"input_schema": {"type": "object"}}]},
            400,
            "invalid_request_error",
            "tools[0].name",
        ),
        (
            {"stop_sequences": [str(n) for n in range(65)]},
            400,
            "invalid_request_error",
            "stop_sequences",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "jump"}},
            400,
            "invalid_request_error",
            "jump",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 5}},
            400,
            "invalid_request_error",
            "thinking.budget_tokens",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}},
            400,
            "invalid_request_error",
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
            400,
            "invalid_request_error",
            "messages[0].content[0]: the model omlx-demo/target cannot read",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]}
                ]
            },
            400,
            "invalid_request_error",
            "no tool call 't1'",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b "},
                ]
            },
            400,
            "invalid_request_error",
            "whitespace",
        ),
    ],
)
def test_refusals_are_of_this_api(
    client: Anthropic, fields: Any, status: int, kind: str, words: str
) -> None:
    error = refusal(client, **fields)
    assert error[:2] == (status, kind)
    assert words in error[2]


def test_an_unknown_model_is_not_found(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(
            model="claude-x", max_tokens=1, messages=[{"role": "user", "content": "x"}]
        )
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_keys_of_either_kind() -> None:
    with omlx(Settings(api_key="secret"), build=spelling_pool) as running:
        for fields in ({"api_key": "secret"}, {"auth_token": "secret", "api_key": None}):
            with Anthropic(base_url=running.url, max_retries=0, **fields) as client:
                assert ask(client, "Hi.").content[0].text == "Hi."
        with Anthropic(base_url=running.url, api_key="wrong", max_retries=0) as client:
            assert refusal(client)[:2] == (401, "authentication_error")
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.models.list()
            assert caught.value.body["error"]["type"] == "authentication_error"


def test_names_are_mapped_only_where_that_is_set() -> None:
    settings = Settings(model_map=("claude-*haiku*=" + DRAFT, "claude-*=" + HYBRID))
    with (
        omlx(settings, build=spelling_pool) as running,
        Anthropic(base_url=running.url, api_key="none") as client,
    ):
        for name, served in (
            ("claude-haiku-9", DRAFT),
            ("claude-opus-9", HYBRID),
            (TARGET, TARGET),
        ):
            answer = client.messages.create(
                model=name, max_tokens=9, messages=[{"role": "user", "content": "Hi."}]
            )
            assert answer.model == served
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(
                model="gpt-9", max_tokens=9, messages=[{"role": "user", "content": "Hi."}]
            )


def test_models_in_the_words_of_this_api(client: Anthropic) -> None:
    listed = client.models.list()
    assert {TARGET, DRAFT, HYBRID} <= {model.id for model in listed}
    one = client.models.retrieve(TARGET)
    assert (one.type, one.id, one.display_name) == ("model", TARGET, TARGET)
    assert one.created_at.year > 2000
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("org/none")
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")


def test_counting_loads_nothing(speller: Running) -> None:
    with Anthropic(base_url=speller.url, api_key="none") as client:
        ask(client, "x")
        counted = client.messages.count_tokens(
            model=HYBRID, messages=[{"role": "user", "content": "x"}], tools=TOOLS, system="s"
        )
    assert counted.input_tokens > 20
    assert speller.pool.last_used is not None
    assert speller.pool.last_used.id == TARGET


def test_a_silent_stream_is_kept_open_by_pings() -> None:
    with omlx(keep_alive_s=0.0) as running:
        body = {
            "model": TARGET,
            "max_tokens": 4,
            "stream": True,
            "messages": [{"role": "user", "content": "word " * 500}],
        }
        with httpx.stream(
            "POST", f"{running.url}/v1/messages?beta=true", json=body, timeout=60
        ) as answer:
            names = [
                line.removeprefix("event: ")
                for line in answer.iter_lines()
                if line.startswith("event: ")
            ]
    assert names[:2] == ["message_start", "ping"]
    assert names.count("ping") > 1
    assert names[-2:] == ["message_delta", "message_stop"]
