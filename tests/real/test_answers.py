"""SmolLM2 knows what it knew before it was converted, through every client that people have."""

from __future__ import annotations

import httpx
import ollama
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.lanes import few
from tests.real.models import SMOLLM2, ask
from tests.server.running import Running

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
GOLDEN = {CAPITAL: PARIS, "What is the capital of Japan?": "The capital of Japan is Tokyo."}


@pytest.mark.parametrize("question", few(GOLDEN, CAPITAL))
def test_golden_answers(http: httpx.Client, question: str) -> None:
    answer = ask(http, question)
    text = b"".join(answer.tokens).decode()
    assert (text, answer.finish_reason) == (GOLDEN[question], "stop")


def test_the_openai_client_streams_it(server: Running) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chunks = client.chat.completions.create(
            model=SMOLLM2.id,
            messages=[{"role": "user", "content": CAPITAL}],
            temperature=0,
            stream=True,
        )
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == PARIS
    assert len([text for text in texts if text]) > 1


def test_the_anthropic_client(server: Running) -> None:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model=SMOLLM2.id,
            max_tokens=32,
            extra_body={"temperature": 0},  # newer models of theirs have none
            messages=[{"role": "user", "content": CAPITAL}],
        )
    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason) == (PARIS, "end_turn")


def test_the_ollama_client(server: Running) -> None:
    with ollama.Client(server.url) as client:
        answer = client.chat(
            SMOLLM2.id, messages=[{"role": "user", "content": CAPITAL}], options={"temperature": 0}
        )
    assert (answer.message.content, answer.done_reason) == (PARIS, "stop")
