"""SmolLM2 and MiniLM as `make real` brings them; prompts of real text; answers of the server and of
mlx-lm, and the margins where they part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from omlx.exactness import TOLERANCE
from omlx.measure.sample import first_difference
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.text.tokens import decode_byte_level

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".cache/real"
SMOLLM2: Final = ModelEntry("smollm2", FOLDER / "home/models/smollm2", "home", model_type="llama")
MINILM: Final = ModelEntry("minilm", FOLDER / "minilm", "test", model_type="bert")
REGISTRY: Final = Registry((SMOLLM2, MINILM))
ANSWER_TOKENS: Final = 32

QUESTIONS: Final = (
    "What is the capital of France?",
    "Write a limerick about a cat that writes programs.",
    "Explain in two sentences why the sky is blue.",
    "List ten animals of the sea, one on each line.",
    "Translate into French: I would like a cup of tea, please.",
    "Write a Python function that returns the larger of two numbers.",
    "What is 12 times 12? Think step by step.",
    "Write the first lines of a letter to the editor of a newspaper.",
)
TASKS: Final = (
    "Repeat the text above word for word.",
    "Summarize the text above in one sentence.",
    "Repeat the text above, with every 'the' replaced by 'a'.",
    "What is the text above about? Answer with a list.",
)
LENGTHS: Final = (60, 90, 120, 200, 300, 400, 600, 900, 1200, 1600, 2000, 2400, 2800, 2950)
COUNT: Final = 40
QUICK: Final = (0, 24)
"""Prompts of the tests that are not slow, of 37 to 150 tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` as bytes, with their log probabilities."""

    tokens: Sequence[bytes]
    logprobs: Sequence[float]
    prompt_tokens: int
    cached: int = 0
    drafted: int = 0
    finish_reason: str = "length"


@cache
def prompts() -> list[str]:
    """Return 40 prompts of 20 to 3,000 tokens: questions, and tasks with a text before them."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    pieces = tokenizer().encode(" ".join(text.split()), add_special_tokens=False)
    tasks, begin = [], 0
    for number in range(COUNT - len(QUESTIONS)):
        length = LENGTHS[number % len(LENGTHS)]
        ring = pieces * 3
        passage = tokenizer().decode(ring[begin : begin + length])
        begin = (begin + 331) % len(pieces)  # no two prompts begin alike
        tasks.append(f"{passage}\n\n{TASKS[number % len(TASKS)]}")
    return [*QUESTIONS, *tasks]


@cache
def tokenizer() -> Any:
    return read_tokenizer(SMOLLM2)


def chat_ids(prompt: str) -> list[int]:
    """Return the token ids of a prompt within the chat template."""
    messages = [{"role": "user", "content": prompt}]
    ids: list[int] = tokenizer().apply_chat_template(messages, add_generation_prompt=True)
    return ids


def ask(http: httpx.Client, prompt: str, **fields: Any) -> Answer:
    """Return a greedy answer of the chat API."""
    body = {
        "model": SMOLLM2.id,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "logprobs": True,
        **fields,
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    record = answer.json()
    (choice,), timings = record["choices"], record["timings"]
    tokens = choice["logprobs"]["content"]
    return Answer(
        [bytes(token["bytes"]) for token in tokens],
        [token["logprob"] for token in tokens],
        record["usage"]["prompt_tokens"],
        record["usage"]["prompt_tokens_details"]["cached_tokens"],
        timings.get("draft_n", 0),
        choice["finish_reason"],
    )


@cache
def _mlx_lm() -> Any:
    model, _ = load(str(SMOLLM2.path))
    return model


def reference(prompt: str, max_tokens: int = ANSWER_TOKENS, *, endless: bool = False) -> Answer:
    """Return the greedy answer of mlx-lm's own generation, without its stop token.

    `endless`: it does not stop by itself.
    """
    stops = tokenizer().eos_token_ids
    bias = make_logits_processors(logit_bias=dict.fromkeys(stops, -100.0) if endless else None)
    ids, tokens, logprobs, reason = chat_ids(prompt), [], [], "length"
    steps = generate_step(mx.array(ids), _mlx_lm(), max_tokens=max_tokens, logits_processors=bias)
    for token, row in steps:
        if token in stops:
            reason = "stop"
            break
        tokens.append(decode_byte_level(tokenizer().convert_ids_to_tokens(token)))
        logprobs.append(row[token].item())
    return Answer(tokens, logprobs, len(ids), finish_reason=reason)


def check_same(prompt: str, answer: Answer, expected: Answer) -> None:
    """Assert that two answers are the same, or part at a near-tie, whose margin is printed."""
    place = first_difference(answer.tokens, expected.tokens)
    if place is None:
        assert answer.finish_reason == expected.finish_reason
        return
    sides = (answer, expected)
    assert all(place < len(side.tokens) for side in sides), (prompt, answer, expected)
    first, second = (side.tokens[place] for side in sides)
    margin = abs(answer.logprobs[place] - expected.logprobs[place])
    print(  # noqa: T201 — `make test-real` shows it
        f"near-tie at token {place}: {first!r}, {second!r}, margin {margin:.2g}: {prompt[-60:]!r}"
    )
    assert margin <= tolerance(), (prompt, first, second, margin)


def tolerance() -> float:
    """Return the gap in logits that rounding may decide, by the dtype of the converted weights."""
    dense = mx.default_device().type == mx.DeviceType.cpu
    return TOLERANCE["float32" if dense else "float16"]
