"""The questions: made anew for every trial, the same at every run, of the length that was asked for."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

import pytest

from omlx.bench.workloads import TEXTS, WORKLOADS, Workload, names, questions, renamed, uses, vary

CONTEXT = 600
FUNCTIONS = (TEXTS / "functions.txt").read_text(encoding="utf-8").strip().split("\n\n\n")


def count(text: str) -> int:
    return len(text) // 3


def said(workload: Workload, trial: int, rows: int = 1) -> list[str]:
    made = questions(workload, trial, rows, CONTEXT, count)
    return ["\n".join(message["content"] for message in question.messages) for question in made]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_trial_asks_something_new_and_every_run_the_same(workload: Workload) -> None:
    trials = [said(workload, trial) for trial in range(10)]
    assert trials == [said(workload, trial) for trial in range(10)]
    asked = [text for trial in trials for text in trial]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_rows_ask_different_things(workload: Workload) -> None:
    texts = said(workload, 1, rows=4)
    assert len(texts) == 4 * workload.repeats == len(set(texts))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_prompt_and_answer_stay_near_the_context_that_was_asked_for(workload: Workload) -> None:
    for trial in range(5):
        for text, question in zip(
            said(workload, trial), questions(workload, trial, 1, CONTEXT, count), strict=True
        ):
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


def test_no_text_stands_in_the_standard_library() -> None:
    """Four lines in a row would say that a function was taken from there."""
    runs = set()
    for code in FUNCTIONS:
        lines = [line.strip() for line in code.splitlines() if line.strip()]
        runs |= {tuple(lines[i : i + 4]) for i in range(len(lines) - 3)}
    root = Path(sysconfig.get_paths()["stdlib"])
    firsts = {run[0] for run in runs}
    for path in root.rglob("*.py"):
        if "site-packages" in path.parts:
            continue
        lines = [
            line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        lines = [line for line in lines if line]
        for i, line in enumerate(lines):
            assert line not in firsts or tuple(lines[i : i + 4]) not in runs, (path, i)
