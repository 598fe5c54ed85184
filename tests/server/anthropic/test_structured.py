"""Structured outputs through the official client. The model spells the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types import TextBlock, ThinkingBlock
from pydantic import BaseModel

from tests.server.running import TARGET, Running

SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA = json.dumps({"name": "Ada", "age": 36})
FORM: Any = {"type": "json_schema", "schema": SCHEMA}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
def client(speller: Running) -> Iterator[Anthropic]:
    with Anthropic(base_url=speller.url, api_key="none", max_retries=0) as client:
        yield client


def asked(says: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": TARGET,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": says}],
        **fields,
    }


def test_an_answer_is_parsed(client: Anthropic) -> None:
    answer = client.messages.parse(**asked(f"{ADA} is her name."), output_format=Person)
    assert answer.parsed_output == Person(name="Ada", age=36)
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "fields", [{"output_config": {"format": FORM}}, {"extra_body": {"output_format": FORM}}]
)
def test_the_form_under_both_its_names(client: Anthropic, fields: dict[str, Any]) -> None:
    answer = client.messages.create(**asked(f"{ADA} is her name.", **fields))
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == [ADA]


def test_a_thought_comes_before_it(client: Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    says = f"<think>\nHm.\n</think>\n\n{ADA}"
    answer = client.messages.create(
        **asked(says, thinking=thinking, output_config={"format": FORM})
    )
    thought, text = answer.content
    assert isinstance(thought, ThinkingBlock)
    assert thought.thinking == "Hm."
    assert isinstance(text, TextBlock)
    assert text.text == ADA


def test_a_stream_has_it_too(client: Anthropic) -> None:
    with client.messages.stream(
        **asked(f"{ADA} is her name.", output_config={"format": FORM})
    ) as stream:
        assert "".join(stream.text_stream) == ADA
