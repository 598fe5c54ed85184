"""Images through the official clients, in every dialect, against tiny models that see."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.server.media.pictures import QWEN, SMOL, asking, some_uri
from tests.server.running import Running

pytestmark = pytest.mark.needs_extra

CAT, DOG = some_uri(seed=1), some_uri(64, 40, seed=2)
SAMPLED = {"temperature": 0.8, "seed": 7}


@pytest.fixture
def openai(seer: Running) -> Any:
    return seer.openai


@pytest.fixture
def anthropic(seer: Running) -> Any:
    return seer.claude


def chat(openai: OpenAI, model: str, *parts: Any, **more: Any) -> Any:
    fields = {"max_tokens": 12, **SAMPLED, **more}
    return openai.chat.completions.create(model=model, messages=[asking(*parts)], **fields)  # type: ignore[arg-type]


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("model", [QWEN, SMOL])
def test_chat_sees_the_image_and_speculation_changes_nothing(openai: OpenAI, model: str) -> None:
    plain = chat(openai, model, "Look: ", CAT, " What?", extra_body={"speculation": "off"})
    with_lookups = chat(openai, model, "Look: ", CAT, " What?", extra_body={"speculation": "ngram"})
    stream = chat(openai, model, "Look: ", CAT, " What?", stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text_of(plain) == text_of(with_lookups) == streamed
    sure, other = (
        chat(openai, model, "Look: ", image, " What?", logprobs=True).choices[0].logprobs.content[0]
        for image in (CAT, DOG)
    )
    assert sure.logprob != other.logprob
    words, details = chat(openai, model, "Look:  What?").usage, plain.usage.prompt_tokens_details
    assert words.prompt_tokens_details.image_tokens is None
    assert 0 < details.image_tokens < plain.usage.prompt_tokens


def test_the_order_of_parts_is_kept(seer: Running, openai: OpenAI) -> None:
    spans = []
    for order in (("a", CAT, "b", DOG), ("a", DOG, "b", CAT), (CAT, "a", DOG, "b")):
        chat(openai, QWEN, *order, max_tokens=1)
        assert seer.engine.newest is not None
        spans.append([(span.image, span.start) for span in seer.engine.newest.spans])
    (first, second), other_way, begins = spans
    assert [name for name, _ in other_way] == [second[0], first[0]]
    assert [name for name, _ in begins] == [first[0], second[0]]
    assert begins[0][1] == first[1] - 1  # "a" is one token


def test_low_detail_takes_fewer_tokens(openai: OpenAI) -> None:
    large = some_uri(250, 250)
    part = {"type": "image_url", "image_url": {"url": large, "detail": "low"}}
    high, low = (chat(openai, QWEN, image).usage.prompt_tokens for image in (large, part))
    assert 100 < low < 300 < high


def test_responses_sees_the_image_in_messages_and_results(openai: OpenAI) -> None:
    image = {"type": "input_image", "image_url": CAT, "detail": "auto"}
    text = {"type": "input_text", "text": "Look: "}
    asked: Any = [{"role": "user", "content": [text, image]}]
    answer = openai.responses.create(
        model=QWEN, input=asked, max_output_tokens=8, temperature=0.8, extra_body={"seed": 7}
    )
    assert answer.output_text == text_of(chat(openai, QWEN, "Look: ", CAT, max_tokens=8))
    counted = openai.responses.input_tokens.count(model=QWEN, input=asked)
    assert counted.input_tokens == answer.usage.input_tokens > 45
    assert answer.usage.input_tokens_details.image_tokens > 30  # type: ignore[attr-defined]
    call = {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [image]}
    viewed: Any = [{"role": "user", "content": "Look"}, call, result]
    seen = openai.responses.input_tokens.count(model=QWEN, input=viewed)
    assert seen.input_tokens > 45
    follow = openai.responses.create(
        model=QWEN, input="And now?", previous_response_id=answer.id, max_output_tokens=4
    )
    assert follow.usage.input_tokens > answer.usage.input_tokens
    assert follow.usage.input_tokens_details.cached_tokens > 40
    shown = openai.responses.input_items.list(answer.id).data[0]
    assert shown.content[1].image_url == CAT  # type: ignore[union-attr, index]


def test_messages_sees_the_image_in_messages_and_results(anthropic: Anthropic) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": CAT.partition(",")[2]}
    image = {"type": "image", "source": source}
    asked: Any = [{"role": "user", "content": [{"type": "text", "text": "Look:"}, image]}]
    fields: Any = {"model": QWEN, "messages": asked}
    answer = anthropic.messages.create(max_tokens=4, **fields)
    assert anthropic.messages.count_tokens(**fields).input_tokens > 45
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) > 45
    call = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    fields["messages"] = [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    assert anthropic.messages.count_tokens(**fields).input_tokens > 45
    with anthropic.messages.stream(max_tokens=4, **fields) as stream:
        assert stream.get_final_message().stop_reason in ("max_tokens", "end_turn")


def test_other_endpoints_count_the_image(http: httpx.Client) -> None:
    asked = {"model": QWEN, "messages": [asking("Look: ", CAT)], "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=asked).status_code == 200
    probe = http.post(f"/v1/models/{QWEN}/prefixes/probe", json=asked).json()
    assert probe["prompt_tokens"] > 45
    assert probe["cached_tokens"] > 40
    counted = http.post("/tokenize", json={"model": QWEN, "messages": asked["messages"]}).json()
    assert counted["count"] == probe["prompt_tokens"]


def test_models_that_see_say_so_before_they_are_loaded(http: httpx.Client) -> None:
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert cards[QWEN]["input_modalities"] == ["text", "image"]
    assert cards[SMOL]["input_modalities"] == ["text", "image"]
    assert cards["omlx-demo/target"]["input_modalities"] == ["text"]
