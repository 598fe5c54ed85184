"""Thinking budgets over real sockets with the official clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool.pool import build_pool
from omlx.settings.schema import Settings
from omlx.text.constraint import CLOSING_SENTENCE
from tests.lanes import few
from tests.server.dialects import markup, user
from tests.server.running import DEMO, DRAFT, TARGET, Running, omlx
from tests.server.spelling import Spelling, read

SUM: list[Any] = user("What is 123 + 456?")
SAID = CLOSING_SENTENCE.strip()
MUTE = "mute"


class Muser(Spelling):
    """Thinks for 300 tokens, unless its reasoning is closed, and then answers with the word that
    the user has sent."""

    LONG = 300

    def _next(self, known: list[int], n: int, begins: list[int]) -> int:
        start = begins[-1] + 1 + len(self._header) if begins else n
        said = str(self._tokenizer.decode(known[start:n]))
        thought, closed, answer = said.partition("</think>")
        if not said.startswith("<think>"):
            return self._ids("<think>")[0]
        if not closed:
            return self._ids("x" if thought.count("x") < self.LONG else "</think>")[0]
        user = known[begins[-2] + 1 : begins[-1]]
        wish = self._script(user)
        rest = wish[len(self._ids(answer)) :]
        return rest[0] if rest else self._end


@pytest.fixture(scope="module")
def muser() -> Iterator[Running]:
    with omlx(build=partial(build_pool, read=partial(read, kind=Muser))) as running:
        yield running


@pytest.fixture
def musing(muser: Running) -> OpenAI:
    return muser.openai


def ask(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in [*fields] if name not in OPENAI_FIELDS}
    return client.chat.completions.create(
        model=TARGET, messages=messages, extra_body=extra, **fields
    )


OPENAI_FIELDS = ("temperature", "seed", "n", "max_tokens", "reasoning_effort", "response_format")


def reasoning(answer: Any) -> str:
    return answer.choices[0].message.model_extra.get("reasoning_content") or ""


@pytest.mark.parametrize("speculation", ["off", "auto"])
@pytest.mark.parametrize("budget", [0, 32, 256, None])
def test_reasoning_ends_at_its_budget_and_the_answer_follows(
    musing: OpenAI, budget: int | None, speculation: str
) -> None:
    answer = ask(musing, user("Done."), thinking_budget=budget, speculation=speculation)
    assert answer.choices[0].message.content == "Done."
    assert answer.choices[0].finish_reason == "stop"
    expected = Muser.LONG if budget is None else budget
    assert reasoning(answer).count("x") == expected
    assert (SAID in reasoning(answer)) == (budget in (32, 256))
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    assert expected <= counted <= expected + 40
    forced = answer.timings["drafters"].get("forced")
    if speculation == "auto" and budget:
        assert forced["accepted"] == forced["proposed"] > 10


def test_every_client_streams_an_answer_after_its_budget(muser: Running, musing: OpenAI) -> None:
    chunks = list(ask_stream(musing, thinking_budget=20))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    assert (thought.count("x"), thought.endswith(SAID)) == (20, True)
    assert "".join(delta.content or "" for delta in deltas) == "Done."

    with musing.responses.stream(
        model=TARGET, input="Done.", extra_body={"thinking_budget": 20}
    ) as stream:
        response = stream.get_final_response()
    assert response.output_text == "Done."
    assert response.usage is not None
    assert 20 < response.usage.output_tokens_details.reasoning_tokens < 60

    with muser.claude.messages.stream(
        model=TARGET,
        messages=user("Done."),
        max_tokens=2000,
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_body={"thinking_budget": 20},
    ) as messages:
        blocks = messages.get_final_message().content
    assert [block.type for block in blocks] == ["thinking", "text"]
    assert getattr(blocks[0], "thinking", "").count("x") == 20
    assert getattr(blocks[1], "text", "") == "Done."


def ask_stream(client: OpenAI, **extra: Any) -> Any:
    return client.chat.completions.create(
        model=TARGET, messages=user("Done."), stream=True, extra_body=extra
    )


def test_anthropics_budget_is_kept(muser: Running) -> None:
    """Of a model that thinks longer than the least budget of that API."""
    Muser.LONG = 1100
    try:
        message = muser.claude.messages.create(
            model=TARGET,
            messages=user("Done."),
            max_tokens=2000,
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
        none = muser.claude.messages.create(
            model=TARGET, messages=user("Done."), max_tokens=99, thinking={"type": "disabled"}
        )
    finally:
        Muser.LONG = 300
    assert getattr(message.content[0], "thinking", "").count("x") == 1024
    assert getattr(message.content[1], "text", "") == "Done."
    assert [getattr(block, "text", "") for block in none.content] == ["Done."]


def test_an_effort_of_none_is_a_budget_of_0(musing: OpenAI) -> None:
    answer = ask(musing, user("Done."), reasoning_effort="none")
    assert (reasoning(answer), answer.choices[0].message.content) == ("", "Done.")


def test_a_schema_and_a_call_after_the_budget(musing: OpenAI) -> None:
    answer = ask(musing, user("yes"), thinking_budget=12, guided_choice=["yes", "no"])
    assert answer.choices[0].message.content == "yes"
    assert reasoning(answer).count("x") == 12
    call = markup("look")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    answer = ask(musing, user(call), thinking_budget=12, tools=tools)
    assert answer.choices[0].message.tool_calls[0].function.name == "look"
    assert reasoning(answer).count("x") == 12


def test_a_raw_prompt_that_opens_reasoning(musing: OpenAI) -> None:
    prompt = "<|im_start|>user\nDone.<|im_end|>\n<|im_start|>assistant\n<think>"
    answer = musing.completions.create(
        model=TARGET, prompt=prompt, max_tokens=200, extra_body={"thinking_budget": 7}
    )
    assert answer.choices[0].text == f"{'x' * 7}{CLOSING_SENTENCE}</think>Done."


@pytest.mark.slow
@pytest.mark.parametrize("temperature", few([0.0, 0.8], 0.8))
def test_speculation_changes_no_token(client: OpenAI, temperature: float) -> None:
    """Of a real model, with two rows that are closed within reasoning."""
    texts: dict[str, list[tuple[str, str]]] = {}
    for speculation in ("off", "draft", "ngram", "auto"):
        answer = ask(
            client,
            SUM,
            thinking_budget=20,
            speculation=speculation,
            temperature=temperature,
            seed=5,
            n=2,
            max_tokens=64,
        )
        messages = [choice.message for choice in answer.choices]
        texts[speculation] = [
            (message.model_extra["reasoning_content"], message.content) for message in messages
        ]
    assert texts["draft"] == texts["off"]
    assert texts["ngram"] == texts["off"]
    assert texts["auto"] == texts["off"]
    assert all(SAID in thought for thought, _ in texts["off"])


def test_defaults_of_the_settings_and_of_the_template_variables() -> None:
    build = partial(build_pool, read=partial(read, kind=Muser))
    with omlx(Settings(thinking_budget=3), build=build) as running:
        client = running.openai
        counts = [
            reasoning(ask(client, user("Done."), **fields)).count("x")
            for fields in (
                {},
                {"thinking_budget": 5},
                {"thinking_budget": -1},
                {"chat_template_kwargs": {"thinking_budget": 4}},
            )
        ]
    assert counts == [3, 5, 300, 4]


@pytest.fixture(scope="module")
def mute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model has no thinking markers."""
    folder = tmp_path_factory.mktemp("models") / MUTE
    shutil.copytree(BUNDLED / TARGET, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path: Path = folder / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("think>", "other>"), encoding="utf-8")
    registry = Registry((*DEMO.entries, ModelEntry(MUTE, folder, "directory")))
    with omlx(Settings(draft_model=DRAFT), registry=registry, default=MUTE) as running:
        yield running


def test_what_has_no_effect_is_said(mute: Running) -> None:
    body = {"model": MUTE, "max_tokens": 4, "thinking_budget": 9, "reasoning_effort": "low"}
    chat = mute.http.post("/v1/chat/completions", json={**body, "messages": SUM})
    messages = mute.http.post(
        "/v1/messages", json={**body, "messages": SUM, "output_config": {"effort": "low"}}
    )
    text = mute.http.post("/v1/completions", json={**body, "prompt": "Hi"})
    plain = mute.http.post("/v1/chat/completions", json={"messages": SUM, "max_tokens": 4})
    codes = ["thinking.no_markers", "thinking.no_levels"]
    for answer in (chat, messages):
        assert [warning["code"] for warning in answer.json()["warnings"]] == codes
    assert [warning["code"] for warning in text.json()["warnings"]] == codes[:1]
    assert "warnings" not in plain.json()
