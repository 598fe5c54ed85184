"""Rows that share a batch draft and are rolled back each for itself: tokens stay the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from omlx.bench.drive import fixed_costs, flat
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import Request, Sampling, Speculation
from tests import zoo
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    decode,
    label,
    loop_of,
    model,
    noisy,
    prompt,
    request,
    unassisted,
)
from tests.lanes import few

FAMILIES = tuple(
    name
    for name in zoo.MAIN_NAMES
    if name not in ("llama_concatenate", "llama4", "nemotron_h") and name != "recurrent_gemma"
)
"""The families whose rows draft while they share a batch."""


def asked(family: str, row: int, strategy: str, sampling: Sampling) -> tuple[Request, list[int]]:
    """A request with a prediction that is wrong in places of its own, and its answer."""
    plain = request(f"r{row}", prompt(9 + 7 * row, salt=row), sampling, 48 + 8 * (row % 3))
    answer = decode(model(family), unassisted(plain))
    period = 5 + 3 * (row % 3)
    prediction = [
        (token + 1) % zoo.VOCAB_SIZE if (i + row) % period == 4 else token
        for i, token in enumerate(answer)
    ]
    speculation = Speculation(parse(strategy), None, tuple(prediction))
    return replace(plain, speculation=speculation), answer


def prove_company(family: str, rows: int, strategy: str, sampling: Sampling) -> Bench:
    """Run rows of which one joins late and one is cancelled; prove the tokens of all."""
    draft = noisy(family, 0.02) if "draft" in strategy or strategy == "auto" else None
    costs = fixed_costs(flat, "tiny", 0.02)
    bench = Bench(loop_of(family, draft, None, replace(LIMITS, max_rows=rows), costs))
    every = [asked(family, row, strategy, sampling) for row in range(rows)]
    first, *others = [one for one, _ in every]
    bench.submit(*others).until(lambda: len(bench.tokens[others[0].id]) >= 12)
    if rows > 2:
        bench.loop.cancel(others[-1].id)
    bench.run(first)
    assert not bench.failed
    for one, answer in every:
        said = bench.tokens[one.id]
        assert said == answer[: len(said)], one.id
        assert len(said) == len(answer) or one is others[-1]
    return bench


def batched_widths(bench: Bench) -> list[set[int]]:
    """The widths of windows in each batched pass that verifies a draft."""
    forwards = [forward for plan in bench.plans for forward in plan.forwards if forward.batched]
    drafting = [f.windows for f in forwards if any(window.draft_n for window in f.windows)]
    return [{window.width for window in windows} for windows in drafting]


@pytest.mark.parametrize(
    ("family", "sampling"),
    few(
        product(FAMILIES, (GREEDY, WARM)),
        ("llama", WARM),
        ("gemma3_text", GREEDY),
        ("lfm2", GREEDY),
    ),
    ids=label,
)
def test_three_rows_with_lookups_have_their_own_tokens(family: str, sampling: Sampling) -> None:
    widths = batched_widths(prove_company(family, 3, "ngram", sampling))
    assert len(widths) > 2
    assert any(len(different) > 1 for different in widths)


@pytest.mark.parametrize("family", few(FAMILIES, "qwen3_next"))
@pytest.mark.parametrize("strategy", ["draft", "ngram;draft"])
def test_two_rows_with_draft_models_have_their_own_tokens(family: str, strategy: str) -> None:
    assert batched_widths(prove_company(family, 2, strategy, WARM))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=label)
@pytest.mark.parametrize("strategy", ["ngram", "draft", "ngram;draft", "auto"])
@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_number_of_rows_has_its_own_tokens(
    family: str, rows: int, strategy: str, sampling: Sampling
) -> None:
    widths = batched_widths(prove_company(family, rows, strategy, sampling))
    assert widths or strategy == "draft"  # which is seldom right enough for recurrent layers
