"""Tokens equal plain decoding of the same request alone, with any draft model and any other row."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
from mlx import nn

from tests.engine.harness import GREEDY, WARM, Bench, loop_of, model, noisy, prompt, request
from tests.engine.pairs import full_product, in_turn
from tests.zoo import MAIN_NAMES

EXCLUDING = replace(WARM, xtc_probability=0.5, xtc_threshold=0.012)

# Prompt 13, then 44 tokens: sliding windows (16) and chunks (16) are crossed several times.
PARAMETERS: dict[str, list[Any]] = {
    "target": list(MAIN_NAMES),
    "draft": ["perfect", "noisy", "wrong", "hybrid", "conv", "sliding"],
    "company": ["alone", "joined", "left"],
    "window": [1, 2, 4, 8, 16],
    "sampling": [GREEDY, WARM, EXCLUDING],
}
DAILY = PARAMETERS | {"draft": ["perfect", "noisy", "hybrid", "sliding"], "window": [1, 4, 16]}
"""Drafts of each kind of cache, and the shortest and longest windows."""


def label(case: dict[str, Any]) -> str:
    heat = {GREEDY: "cold", WARM: "warm", EXCLUDING: "excluding"}[case["sampling"]]
    return f"{case['target']}-{case['draft']}-{case['company']}-{case['window']}-{heat}"


def draft_of(kind: str, target: str) -> nn.Module:
    if kind == "perfect":
        return model(target)
    if kind == "noisy":
        return noisy(target)
    name = {"wrong": target, "hybrid": "qwen3_next", "conv": "lfm2", "sliding": "gemma3_text"}[kind]
    return model(name, seed=1)


def exact(target: str, draft: str, company: str, window: int, sampling: Any) -> None:
    costly = company == "alone" and window >= 8 and draft not in ("perfect", "noisy")
    first = request("first", prompt(13), sampling, max_tokens=24 if costly else 44)
    second = request(
        "second", prompt(21, salt=1), sampling, max_tokens=8 if company == "left" else 24
    )
    bench = Bench(loop_of(target, draft_of(draft, target), window)).prove(
        target, company, first, second
    )
    if company != "joined":
        stats = bench.stats("first")
        assert stats.speculation.code == "spec.on"
        assert stats.proposed > 0
        assert draft != "perfect" or stats.accepted > 0


@pytest.mark.parametrize("case", in_turn(DAILY), ids=label)
def test_tokens_equal_plain_decoding(case: dict[str, Any]) -> None:
    exact(**case)


@pytest.mark.slow
@pytest.mark.parametrize("case", full_product(PARAMETERS), ids=label)
def test_tokens_equal_plain_decoding_in_every_combination(case: dict[str, Any]) -> None:
    exact(**case)


def test_the_cases_cover_every_pair_of_other_values_and_every_target() -> None:
    values = {name: [str(v) for v in choices] for name, choices in DAILY.items()}
    cases = in_turn(values)
    assert len(cases) < len(full_product(values)) / 50
    targets = Counter(case["target"] for case in cases)
    assert all(targets[name] for name in values.pop("target"))
    for first, second in combinations(values, 2):
        pairs = {(case[first], case[second]) for case in cases}
        assert pairs == set(product(values[first], values[second]))
