"""SmolLM2 and MiniLM as `make real` brings them; prompts of real text, answers and their margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import mlx.core as mx

from omlx.measure.exactness import TOLERANCE, first_difference
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.registry import Registry
from omlx.models.package.tokenizer import read_tokenizer

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
QUICK: Final = (0, 1, 3, 5, 8, 9, 12, 15, 18, 20)
"""Prompts that the tests read which are not slow: up to 600 tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`tokens` as bytes, with their log probabilities."""

    tokens: Sequence[bytes]
    logprobs: Sequence[float]
    text: str
    prompt_tokens: int
    cached: int
    drafted: int
    accepted: int


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


def tokenizer() -> Any:
    return read_tokenizer(SMOLLM2)


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
        choice["message"]["content"],
        record["usage"]["prompt_tokens"],
        record["usage"]["prompt_tokens_details"]["cached_tokens"],
        timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0),
    )


def check_same(prompt: str, answer: Answer, reference: Answer) -> None:
    """Assert that two answers are the same, or part at a near-tie, whose margin is printed."""
    place = first_difference(answer.tokens, reference.tokens)
    if place is None:
        return
    sides = (answer, reference)
    assert all(place < len(side.tokens) for side in sides), (prompt, answer, reference)
    first, second = (side.tokens[place] for side in sides)
    margin = abs(answer.logprobs[place] - reference.logprobs[place])
    print(
        f"near-tie at token {place}: {first!r}, {second!r}, margin {margin:.2g}: {prompt[-60:]!r}"
    )
    assert margin <= tolerance(), (prompt, first, second, margin)


def tolerance() -> float:
    """Return the gap in logits that rounding may decide, by the dtype of the converted weights."""
    dense = mx.default_device().type == mx.DeviceType.cpu
    return TOLERANCE["float32" if dense else "float16"]
