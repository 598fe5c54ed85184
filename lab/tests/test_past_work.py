"""Lookup in past answers: tokens per pass of texts that repeat, and of texts that do not."""

from __future__ import annotations

from lab.bench.past_work import tokens_per_pass

NEW = list(range(100, 140))


def test_an_answer_seen_before_is_drafted_whole() -> None:
    answers = [([1, 2, 3], NEW), ([1, 2, 3], NEW)]
    assert tokens_per_pass(answers, past=False) == 1.0
    assert tokens_per_pass(answers, past=True) == 80 / (40 + 5)  # nine tokens in a pass


def test_a_repetition_within_the_request_needs_no_past() -> None:
    answers = [(NEW, NEW[:20])]
    assert tokens_per_pass(answers, past=False) == tokens_per_pass(answers, past=True)
    assert tokens_per_pass(answers, past=False) > 3
