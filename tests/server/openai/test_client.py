"""The official client against a real server: parameters and fields of answers, not their text."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import httpx
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from omlx.engine.types import Finished, FinishReason
from tests.server.dialects import user
from tests.server.running import DRAFT, HYBRID, TARGET, Running

ASK: list[Any] = user("Say hello, then count.")
OFF = {"speculation": "off"}


def chat(client: OpenAI, **fields: Any) -> ChatCompletion:
    return client.chat.completions.create(
        **{"model": TARGET, "messages": ASK, "max_tokens": 12, "seed": 5, **fields}
    )


def chunks(client: OpenAI, **fields: Any) -> list[ChatCompletionChunk]:
    with client.chat.completions.create(
        **{"model": TARGET, "messages": ASK, "max_tokens": 12, "seed": 5, "stream": True, **fields}
    ) as stream:
        return list(stream)


def said(message: Any) -> tuple[str, str]:
    """Reasoning and content of a message, or of all deltas."""
    parts = message if isinstance(message, list) else [message]
    return tuple(
        "".join(getattr(part, name, None) or "" for part in parts)
        for name in ("reasoning_content", "content")
    )


def test_an_answer_has_usage_and_timings(client: OpenAI) -> None:
    answer = chat(client, extra_body={"num_draft_tokens": 3})
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", TARGET, "chatcmpl-")
    usage, timings = answer.usage, answer.timings
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens == timings["predicted_n"] <= 12
    assert usage.prompt_tokens == timings["prompt_n"] + timings["cache_n"]
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens == timings["draft_n_accepted"]
    assert (
        details.accepted_prediction_tokens + details.rejected_prediction_tokens
        == timings["draft_n"]
    )
    assert timings["draft_n"] > 0
    assert timings["drafters"][DRAFT]["proposed"] > 0
    assert (
        sum(drafter["proposed"] for drafter in timings["drafters"].values()) == timings["draft_n"]
    )
    assert timings["seed"] == 5
    assert timings["speculation"]["code"] == "spec.on"


def test_a_seed_repeats_the_answer_with_and_without_speculation(client: OpenAI) -> None:
    first = chat(client, seed=-1, temperature=0.8)
    for body in ({}, OFF, {"num_draft_tokens": 2}, {"num_draft_tokens": 0}):
        again = chat(client, seed=-1, temperature=0.8, extra_body=body)
        assert said(again.choices[0].message) == said(first.choices[0].message)
    assert chat(client, extra_body=OFF).timings["speculation"]["code"] == "spec.off.requested"


def test_a_drawn_seed_is_reported_and_repeats_the_answer(client: OpenAI) -> None:
    first, second = chat(client, seed=None), chat(client, seed=None)
    seeds = [answer.timings["seed"] for answer in (first, second)]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert said(chat(client, seed=seeds[0]).choices[0].message) == said(first.choices[0].message)


def test_logprobs_are_there_when_asked_for(client: OpenAI) -> None:
    assert chat(client).choices[0].logprobs is None
    answer = chat(client, logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert answer.usage.completion_tokens - len(content) in (0, 1)
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 4
        ranked = [each.logprob for each in entry.top_logprobs]
        assert ranked == sorted(ranked, reverse=True)
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    streamed = chunks(client, logprobs=True, top_logprobs=4)
    parts = [c.choices[0].logprobs.content for c in streamed if c.choices[0].logprobs]
    entries = chain.from_iterable(parts)
    assert [entry.token for entry in entries] == [entry.token for entry in content]


def test_choices_differ_and_the_first_is_the_only_one_of_n_1(client: OpenAI) -> None:
    answer = chat(client, n=3, temperature=1.5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({said(choice.message) for choice in answer.choices}) > 1
    assert said(answer.choices[0].message) == said(chat(client, temperature=1.5).choices[0].message)
    streamed = chunks(client, n=3, temperature=1.5)
    for index, choice in enumerate(answer.choices):
        own = [c.choices[0].delta for c in streamed if c.choices[0].index == index]
        assert said(own) == said(choice.message)


def test_logit_bias_bans_and_forces(client: OpenAI) -> None:
    forced = chat(client, logit_bias={"70": 100}, max_tokens=4, logprobs=True)
    assert len({entry.token for entry in forced.choices[0].logprobs.content}) == 1


def test_closing_a_stream_frees_the_row_within_two_steps(server: Running, client: OpenAI) -> None:
    chat(client, max_tokens=1)
    stream = client.chat.completions.create(
        model=TARGET, messages=ASK, max_tokens=2000, n=2, stream=True, logit_bias=server.endless()
    )
    first = next(iter(stream))
    stream.close()
    ends = server.engine.wait_until_ended(first.id)
    assert len(ends) == 2
    for steps, event in ends:
        assert steps <= 2
        assert isinstance(event, Finished)
        assert event.reason is FinishReason.CANCELLED
    load = server.engine.request_counts(TARGET)
    assert (load.waiting, load.prefilling, load.decoding) == (0, 0, 0)


def test_a_client_that_leaves_before_its_answer_frees_the_row(
    server: Running, client: OpenAI
) -> None:
    chat(client, max_tokens=1)
    count = len(server.engine.submitted)
    endless = {"max_tokens": 3000, "logit_bias": server.endless()}
    body = json.dumps({"messages": ASK, **endless}).encode()
    request_line = "POST /v1/chat/completions HTTP/1.1"
    head = f"{request_line}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + body)
        request_id = server.engine.wait_for_submission(count)
    ((steps, event),) = server.engine.wait_until_ended(request_id)
    assert steps <= 2
    assert isinstance(event, Finished)
    assert event.reason is FinishReason.CANCELLED


def test_32_clients_at_once(client: OpenAI) -> None:
    def one(i: int) -> ChatCompletion:
        return chat(
            client,
            max_tokens=1 + i % 7,
            seed=i,
            messages=[{"role": "user", "content": "x " * (1 + 5 * (i % 6))}],
        )

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(one, range(32)))
    assert len({answer.id for answer in answers}) == 32
    for i, answer in enumerate(answers):
        assert 1 <= answer.usage.completion_tokens <= 1 + i % 7
        assert answer.timings["seed"] == i


def test_models_are_listed_and_found_by_raw_and_encoded_ids(
    client: OpenAI, http: httpx.Client
) -> None:
    ids = [model.id for model in client.models.list()]
    assert {TARGET, DRAFT, HYBRID} <= set(ids)
    assert client.models.retrieve(TARGET).id == TARGET
    for path in (TARGET, TARGET.replace("/", "%2F")):
        assert http.get(f"/v1/models/{path}").json()["id"] == TARGET


def test_other_models_load_at_their_first_request_and_the_first_comes_back(client: OpenAI) -> None:
    before = chat(client)
    with ThreadPoolExecutor(6) as threads:
        asked = [TARGET, HYBRID, DRAFT, TARGET, HYBRID, TARGET]
        answers = list(threads.map(lambda name: chat(client, model=name, max_tokens=3), asked))
    assert [answer.model for answer in answers] == asked
    alone = next(answer for answer in answers if answer.model == DRAFT)
    gates = alone.timings["speculation"]["gates"]
    assert gates["draft"]["reason"]["code"] == "draft.unfit.same_model"
    assert said(chat(client).choices[0].message) == said(before.choices[0].message)
