"""The bundled model that sees, with the draft that its package declares, over a real socket."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final

import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.models.catalog.discovery import BUNDLED
from tests.lanes import few
from tests.server.dialects import user
from tests.server.media.pictures import asking, file_of, uri
from tests.server.running import SEEING, VISION, Running, omlx
from training.pictures import Subject, draw, subjects

pytestmark = pytest.mark.needs_extra

QUESTION: Final = "What is in the picture?"
DRAFTED: Final = {"speculation": "draft", "num_draft_tokens": 4}
COUNT, SAMPLED = 40, 5
"""Pictures that are named with chat completions, and with each other API."""


@pytest.fixture(scope="module")
def demo() -> Iterator[Running]:
    with omlx(registry=SEEING, default=VISION) as running:
        yield running


@pytest.fixture
def openai(demo: Running) -> OpenAI:
    return demo.openai


@pytest.fixture
def anthropic(demo: Running) -> Anthropic:
    return demo.claude


def shown(count: int, seed: int = 5) -> list[tuple[Subject, str]]:
    """Pictures that were not in the training, as data URIs; some combinations were not either."""
    rng = random.Random(seed)
    drawn = rng.choices(subjects(held_out=False) + subjects(held_out=True), k=count)
    return [(subject, uri(file_of(draw(rng, subject)))) for subject in drawn]


def fields(*messages: Any, **more: Any) -> Any:
    return {"model": VISION, "messages": messages, "max_tokens": 24, "temperature": 0, **more}


def named(answers: list[tuple[Subject, str]]) -> int:
    return sum(said.startswith(f"{subject.named} ") for subject, said in answers)


def chat_answer(openai: OpenAI, picture: str) -> tuple[str, int]:
    """Return a streamed answer of chat completions, and how many drafted tokens it accepted."""
    stream = openai.chat.completions.create(
        **fields(asking(picture, QUESTION)),
        stream=True,
        stream_options={"include_usage": True},
        extra_body=DRAFTED,
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    details = chunks[-1].usage.completion_tokens_details
    return "".join(deltas), details.accepted_prediction_tokens


def test_colour_and_shape_of_held_out_pictures_are_named_in_streams(openai: OpenAI) -> None:
    answers, accepted = [], 0
    for subject, picture in shown(COUNT):
        said, more = chat_answer(openai, picture)
        answers.append((subject, said))
        accepted += more
    assert named(answers) >= 0.9 * COUNT, answers
    assert accepted > 2 * COUNT


def test_the_responses_api_streams_the_same(openai: OpenAI) -> None:
    for _, picture in shown(SAMPLED, seed=6):
        parts = [
            {"type": "input_image", "image_url": picture, "detail": "auto"},
            {"type": "input_text", "text": QUESTION},
        ]
        asked: Any = user(parts)
        events = openai.responses.create(
            model=VISION, input=asked, max_output_tokens=24, temperature=0, stream=True
        )
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == chat_answer(openai, picture)[0]


def test_the_messages_api_streams_the_same(anthropic: Anthropic, openai: OpenAI) -> None:
    for _, picture in shown(SAMPLED, seed=7):
        data = picture.partition(",")[2]
        source = {"type": "base64", "media_type": "image/png", "data": data}
        parts = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
        asked: Any = user(parts)
        with anthropic.messages.stream(
            model=VISION, messages=asked, max_tokens=24, extra_body={"temperature": 0}
        ) as stream:
            assert "".join(stream.text_stream) == chat_answer(openai, picture)[0]


def test_ollamas_api_answers_the_same(demo: Running, openai: OpenAI) -> None:
    options = {**DRAFTED, "num_predict": 24, "temperature": 0}
    for _, picture in shown(SAMPLED, seed=9):
        expected, accepted = chat_answer(openai, picture)
        for image in (picture, picture.partition(",")[2]):
            asked = {"role": "user", "content": QUESTION, "images": [image]}
            body = {"model": VISION, "messages": [asked], "stream": False, "options": options}
            said = demo.http.post("/api/chat", json=body).json()
            assert said["message"]["content"] == expected
            assert said["timings"]["draft_n_accepted"] == accepted
        made = {"model": VISION, "prompt": QUESTION, "images": [image], "options": options}
        lines = demo.http.post("/api/generate", json=made).text.splitlines()
        assert "".join(json.loads(line)["response"] for line in lines) == expected
    broken = {**body, "messages": [{**asked, "images": ["no picture"]}]}
    refused = demo.http.post("/api/chat", json=broken)
    assert (refused.status_code, refused.json()["code"]) == (400, "image.broken")
    assert "messages[0].images[0]" in refused.json()["error"]


@pytest.mark.parametrize("temperature", few((0, 0.8), 0.8))
def test_speculation_changes_no_token(openai: OpenAI, temperature: float) -> None:
    for _, picture in shown(SAMPLED, seed=8):
        asked = fields(asking(picture, QUESTION), temperature=temperature, seed=3, logprobs=True)
        told = {}
        for speculation in ("off", "draft", "draft;ngram"):
            answer = openai.chat.completions.create(
                **asked, extra_body={**DRAFTED, "speculation": speculation}
            )
            content = answer.choices[0].logprobs.content
            told[speculation] = [token.token for token in content]
        assert all(one == other for one, other in pairwise(told.values())), told


def test_the_second_turn_reads_the_picture_from_the_prefix_cache(openai: OpenAI) -> None:
    ((subject, picture),) = shown(1, seed=9)
    first = asking(picture, QUESTION)
    answer = openai.chat.completions.create(**fields(first))
    said = {"role": "assistant", "content": answer.choices[0].message.content}
    question = {"role": "user", "content": "What colour is it?"}
    again = openai.chat.completions.create(**fields(first, said, question))
    assert again.usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens - 4
    assert again.choices[0].message.content == f"{subject.colour.capitalize()}."


def test_words_alone_are_answered(openai: OpenAI) -> None:
    for question in (QUESTION, "Hello"):
        asked = fields({"role": "user", "content": question}, max_tokens=64)
        answer = openai.chat.completions.create(**asked).choices[0]
        assert answer.finish_reason == "stop"
        assert answer.message.content


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_documents_show_a_command_that_streams_colour_and_shape(demo: Running) -> None:
    page = (BUNDLED.parents[1] / "docs/vision.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ {4}png=(?:.|\n {4})*?'$", page, re.M)
    command = dedent(command).replace("localhost:8000", demo.url)
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    lines = [line.removeprefix("data: ") for line in ran.stdout.splitlines() if line]
    assert lines[-1] == "[DONE]", ran.stdout
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert said.startswith("A red circle "), said
    details = json.loads(lines[-2])["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
