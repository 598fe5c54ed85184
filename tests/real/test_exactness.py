"""Tokens of SmolLM2 are those of mlx-lm's own generation: plain, drafted, in company, and after a
restart. Prompts of 37 to 150 tokens; all 40, of up to 3,000, are slow.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

import httpx
import pytest

from tests.cli.serving import ended_by
from tests.lanes import few
from tests.real.models import (
    COUNT,
    QUICK,
    SMOLLM2,
    Answer,
    ask,
    chat_ids,
    check_same,
    prompts,
    reference,
    tokenizer,
)

CONTEXT = 8192
DRAFTING = {"speculation": "ngram", "num_draft_tokens": 6}
"""At any speed of this machine."""
HEAD = {"speculation": "mtp", "num_draft_tokens": 2}
MODES = {
    "off": {"speculation": "off"},
    "auto": {"speculation": "auto"},
    "lookups": DRAFTING,
    "head": HEAD,
}
RESTARTED = 11
"""The prompt, of 245 tokens, that is asked again in the next process. It is asked twice in the
first one: prefixes of fewer than 512 tokens are written to disk once they were used.
"""

lanes = pytest.mark.parametrize(
    "numbers",
    [pytest.param(QUICK, id="quick"), pytest.param(range(COUNT), id="all", marks=pytest.mark.slow)],
)


@cache
def expected(number: int) -> Answer:
    return reference(prompts()[number])


def check(answers: Sequence[Answer], numbers: Sequence[int]) -> None:
    for number, answer in zip(numbers, answers, strict=True):
        check_same(prompts()[number], answer, expected(number))


def test_prompts_are_what_they_are_said_to_be() -> None:
    lengths = [len(chat_ids(prompt)) for prompt in prompts()]
    assert len(set(prompts())) == COUNT
    assert min(lengths) < 40
    assert 2_900 < max(lengths) <= 3_000


@lanes
@pytest.mark.parametrize("mode", few(MODES, "head"))
def test_an_answer_alone(http: httpx.Client, mode: str, numbers: Sequence[int]) -> None:
    answers = [ask(http, prompts()[number], **MODES[mode]) for number in numbers]
    check(answers, numbers)
    drafted = sum(answer.drafted for answer in answers)
    assert mode == "auto" or (drafted > 0) is (mode != "off")


@lanes
@pytest.mark.parametrize("mode", few(["lookups", "head"], "lookups"))
def test_answers_in_company(http: httpx.Client, mode: str, numbers: Sequence[int]) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(partial(ask, http, **MODES[mode]), map(prompts().__getitem__, numbers))
        )
    check(answers, numbers)
    assert any(answer.drafted for answer in answers)


@pytest.mark.slow
def test_the_next_process_continues_where_the_last_one_ended(tmp_path: Path) -> None:
    prompt, answers = prompts()[RESTARTED], []
    model, room = str(SMOLLM2.path), ("--prefix-disk", "100MB")
    for times in (2, 1):
        with ended_by(signal.SIGTERM, tmp_path, model, *room) as (http, _):
            answers += [ask(http, prompt) for _ in range(times)]
    first, _, again = answers
    assert first.cached == 0
    assert again.cached > 128
    check(answers, [RESTARTED] * 3)


@pytest.mark.slow
def test_the_last_token_of_the_context(http: httpx.Client) -> None:
    words = (prompts()[21].split() * 8)[: CONTEXT // 2]
    while len(chat_ids(" ".join(words))) < CONTEXT - 40:
        words += words[:10]
    while (length := len(chat_ids(" ".join(words)))) > CONTEXT - 24:
        words.pop()
    prompt, left = " ".join(words), CONTEXT - length
    endless = dict.fromkeys(map(str, tokenizer().eos_token_ids), -100)
    answer = ask(http, prompt, max_tokens=left, logit_bias=endless, **DRAFTING)
    assert (answer.prompt_tokens + len(answer.tokens), answer.finish_reason) == (CONTEXT, "length")
    check_same(prompt, answer, reference(prompt, left, endless=True))
    body = {"model": SMOLLM2.id, "messages": [{"role": "user", "content": prompt * 2}]}
    refused = http.post("/v1/chat/completions", json=body)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
