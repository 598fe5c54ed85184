"""Questions: new ones in every trial, the same in every run, of the requested length."""

from __future__ import annotations

import ast
import random
import sysconfig
from itertools import chain
from pathlib import Path

import pytest

from lab.bench.workloads import WORKLOADS, Workload, names, questions, renamed, uses, vary
from omlx.measure.texts import TEXTS

CONTEXT = 600
FUNCTIONS = (TEXTS / "functions.txt").read_text(encoding="utf-8").strip().split("\n\n\n")


def count(text: str) -> int:
    return len(text) // 3


def prompts(workload: Workload, trial: int, rows: int = 1) -> list[str]:
    made = questions(workload, trial, rows, CONTEXT, count)
    return ["\n".join(message["content"] for message in question.messages) for question in made]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_trial_asks_something_new_and_every_run_the_same(workload: Workload) -> None:
    trials = [prompts(workload, trial) for trial in range(10)]
    assert trials == [prompts(workload, trial) for trial in range(10)]
    texts = list(chain.from_iterable(trials))
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_rows_ask_different_things(workload: Workload) -> None:
    texts = prompts(workload, 1, rows=4)
    assert len(texts) == 4 * workload.repeats == len(set(texts))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_prompt_and_answer_stay_near_the_context_that_was_asked_for(workload: Workload) -> None:
    for trial in range(5):
        made = questions(workload, trial, 1, CONTEXT, count)
        for text, question in zip(prompts(workload, trial), made, strict=True):
            assert count(text) + question.longest < 1.3 * CONTEXT


def test_a_warm_conversation_holds_the_first_answer() -> None:
    warm = next(workload for workload in WORKLOADS if workload.name == "warm coding")
    for question in questions(warm, 3, 2, CONTEXT, count):
        assert [message["role"] for message in question.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("code", FUNCTIONS, ids=lambda code: code.split("(")[0].split()[1])
def test_varied_code_is_code(code: str) -> None:
    for seed in range(5):
        varied = vary(random.Random(seed), code)
        ast.parse(varied)
        assert varied != code
        assert len(varied.splitlines()) == len(code.splitlines())


def test_names_and_uses() -> None:
    code = "def f(a, ab):\n    c = a + ab\n    return c.a\n"
    assert names(code) == ["a", "ab", "c"]
    assert uses(code, "a") == 3
    assert renamed(code, "ab", "x") == "def f(a, x):\n    c = a + x\n    return c.a\n"


def code_lines(text: str) -> list[str]:
    """The lines that hold something, without indentation."""
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line]


def test_no_text_is_in_the_standard_library() -> None:
    """Four equal lines in a row would say that a function was taken from there."""
    runs = set()
    for code in FUNCTIONS:
        lines = code_lines(code)
        runs |= {tuple(lines[i : i + 4]) for i in range(len(lines) - 3)}
    firsts = {run[0] for run in runs}
    for path in Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"):
        if "site-packages" in path.parts:
            continue
        lines = code_lines(path.read_text(encoding="utf-8", errors="replace"))
        if firsts.isdisjoint(lines):
            continue
        for i, line in enumerate(lines):
            assert line not in firsts or tuple(lines[i : i + 4]) not in runs, (path, i)


def test_every_second_stream_of_a_mix_has_a_task_of_its_own() -> None:
    mix = next(workload for workload in WORKLOADS if workload.ask_beside is not None)
    first, second, third, fourth = questions(mix, 1, 4, CONTEXT, count)
    assert first.temperature == third.temperature == 0.0
    assert min(second.temperature, fourth.temperature) > 0.0
