"""Text completions, tokenizing and refusals, with the official client against a real server."""

from __future__ import annotations

from itertools import chain
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from openai.types import Completion

from tests.server.dialects import user
from tests.server.running import TARGET

PROMPT = "Once upon a time"


def complete(client: OpenAI, **fields: Any) -> Completion:
    fields = {"prompt": PROMPT, "max_tokens": 8, "seed": 5, **fields}
    return client.completions.create(model=TARGET, **fields)


def test_a_completion(client: OpenAI) -> None:
    answer = complete(client)
    (choice,) = answer.choices
    assert (answer.object, answer.id[:5], choice.index) == ("text_completion", "cmpl-", 0)
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert complete(client, max_tokens=None).usage.completion_tokens <= 16


def test_a_stream_says_what_the_body_says(client: OpenAI) -> None:
    whole = complete(client, prompt=[PROMPT, "And"], n=2, echo=True)
    counted: Any = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = complete(client, prompt=[PROMPT, "And"], n=2, echo=True, **counted)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        own = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(each.text for each in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason


def test_several_prompts_are_answered_as_if_each_were_alone(client: OpenAI) -> None:
    both = complete(client, prompt=[PROMPT, "def main"], n=2, temperature=1.0)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = [
        complete(client, prompt=prompt, n=2, temperature=1.0) for prompt in (PROMPT, "def main")
    ]
    expected = chain.from_iterable(answer.choices for answer in alone)
    assert [choice.text for choice in both.choices] == [choice.text for choice in expected]
    assert both.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone)


def test_a_prompt_may_be_token_ids(client: OpenAI, http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"model": TARGET, "prompt": PROMPT}).json()["tokens"]
    text = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == text
    assert [c.text for c in complete(client, prompt=[ids, ids]).choices] == [text, text]
    assert complete(client, prompt=ids, echo=True).choices[0].text == PROMPT + text


def test_logprobs_have_the_old_shape(client: OpenAI) -> None:
    answer = complete(client, logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens).startswith(answer.choices[0].text[:5])
    assert logprobs.text_offset == [
        len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))
    ]
    assert all(1 <= len(top) <= 3 for top in logprobs.top_logprobs or [])
    assert len(logprobs.token_logprobs or []) == len(logprobs.tokens)
    chunks: Any = complete(client, logprobs=3, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert list(chain.from_iterable(part.tokens for part in parts)) == logprobs.tokens
    assert list(chain.from_iterable(part.text_offset for part in parts)) == logprobs.text_offset


@pytest.mark.parametrize("streamed", [False, True])
def test_offsets_count_characters_of_several_tokens_once(client: OpenAI, streamed: bool) -> None:
    text = "naïve 日本 👍 ok"
    fields = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 0, "stream": streamed}
    answer: Any = complete(client, **fields)
    choices = [part.choices[0] for part in (answer if streamed else [answer]) if part.choices]
    found = [choice.logprobs for choice in choices if choice.logprobs]
    offsets = list(chain.from_iterable(each.text_offset for each in found))
    tokens = list(chain.from_iterable(each.tokens for each in found))
    assert "".join(choice.text or "" for choice in choices) == text
    assert (offsets[0], sorted(offsets)) == (0, offsets)
    whole = [
        (at, token) for at, token in zip(offsets, tokens, strict=True) if "\ufffd" not in token
    ]
    assert all(text[at : at + len(token)] == token for at, token in whole)
    assert offsets[-1] < len(text) < len("".join(tokens))


def streamed_tokens(parts: list[Any]) -> list[str]:
    """The tokens of the logprobs of all chunks of a choice."""
    return list(chain.from_iterable(part.logprobs.tokens for part in parts if part.logprobs))


def test_an_echo_has_logprobs_too(client: OpenAI, http: httpx.Client) -> None:
    """Evaluations score a text by an echo with logprobs."""
    ids = http.post(
        "/tokenize", json={"model": TARGET, "prompt": "def main():\n    return 0\n"}
    ).json()["tokens"]
    fields = {
        "prompt": [ids, ids[:5]],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 1,
        "echo": True,
    }
    answer = complete(client, **fields)
    for choice, prompt in zip(answer.choices, (ids, ids[:5]), strict=True):
        logprobs: Any = choice.logprobs
        lengths = {
            len(logprobs.tokens),
            len(logprobs.token_logprobs),
            len(logprobs.top_logprobs),
            len(logprobs.text_offset),
        }
        assert lengths == {len(prompt) + 1}
        assert "".join(logprobs.tokens) == choice.text
        assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0], logprobs.text_offset[0]) == (
            None,
            None,
            0,
        )
        assert all(
            value <= max(top.values())
            for value, top in zip(
                logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True
            )
        )
        assert logprobs.token_logprobs[-1] == max(logprobs.top_logprobs[-1].values()), (
            "the last one was sampled, greedily"
        )
    assert answer.choices[0].logprobs.token_logprobs[1:5] == pytest.approx(
        answer.choices[1].logprobs.token_logprobs[1:5], abs=1e-3
    )
    again = complete(client, **fields)
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    chunks: Any = complete(client, **fields, stream=True)
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == 0]
    assert "".join(part.text for part in parts) == answer.choices[0].text
    assert streamed_tokens(parts) == answer.choices[0].logprobs.tokens


@pytest.mark.parametrize("n", [1, 2])
def test_no_tokens_are_asked_for_to_score_a_prompt(client: OpenAI, n: int) -> None:
    fields = {"prompt": [PROMPT, "def main"], "logprobs": 1, "echo": True, "n": n}
    scored, longer = (
        complete(client, **fields, max_tokens=0),
        complete(client, **fields, max_tokens=1),
    )
    chunks: Any = list(complete(client, **fields, max_tokens=0, stream=True))
    for choice, more, prompt in zip(
        scored.choices, longer.choices, [PROMPT] * n + ["def main"] * n, strict=True
    ):
        logprobs: Any = choice.logprobs
        assert (choice.text, "".join(logprobs.tokens), choice.finish_reason) == (
            prompt,
            prompt,
            "length",
        )
        assert logprobs.token_logprobs == pytest.approx(more.logprobs.token_logprobs[:-1], abs=1e-3)
        parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(part.text for part in parts) == prompt
        assert streamed_tokens(parts) == logprobs.tokens
        assert parts[-1].finish_reason == "length"
    assert scored.usage.completion_tokens == 0
    assert complete(client, max_tokens=0).choices[0].text == ""


def test_stop_strings(client: OpenAI) -> None:
    text = complete(client, max_tokens=20).choices[0].text
    stopped = complete(client, max_tokens=20, stop=text[6:9]).choices[0]
    assert (text.startswith(stopped.text), stopped.finish_reason) == (True, "stop")
    assert text[6:9] not in stopped.text


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": ""}, "request.empty", "prompt"),
        ({"prompt": []}, "request.empty", "prompt"),
        ({"prompt": [10**9]}, "request.token", "prompt"),
        ({"prompt": ["a"] * 200}, "request.too_many", "prompt"),
        ({"suffix": "end"}, "request.no_gap", "suffix"),
        ({"suffix": "end", "prompt": [1, 2]}, "request.suffix_ids", "suffix"),
        ({"max_tokens": -2}, "request.range", "max_tokens"),
        ({"best_of": 3}, "request.unsupported", "best_of"),
        ({"logprobs": 21}, "request.range", "logprobs"),
    ],
)
def test_what_is_wrong_is_named(
    client: OpenAI, fields: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        complete(client, **fields)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_tokens_there_and_back(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"model": TARGET, "content": "naïve 日本"}).json()
    assert answer["count"] == len(answer["tokens"]) > 3
    back = http.post("/detokenize", json={"model": TARGET, "tokens": answer["tokens"]}).json()
    assert back == {"prompt": "naïve 日本", "content": "naïve 日本"}
    chat = http.post("/tokenize", json={"model": TARGET, "messages": user("hi")}).json()
    text = http.post("/detokenize", json={"model": TARGET, "tokens": chat["tokens"]}).json()[
        "prompt"
    ]
    assert "<|im_start|>user\nhi<|im_end|>" in text


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/tokenize", {}, "request.missing"),
        ("/tokenize", {"prompt": "x", "model": "none"}, "model_not_found"),
        ("/detokenize", {"tokens": [10**9]}, "request.token"),
        ("/detokenize", {"tokens": ["x"]}, "request.type"),
    ],
)
def test_wrong_tokens_are_refused(
    http: httpx.Client, path: str, body: dict[str, Any], code: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["code"] == code
