"""Filters without a sort draw the tokens of mlx-lm's filters, and are exact on their own terms."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Any

import mlx.core as mx
import pytest

from lab.bench.sampling import mlx_lm_draw
from omlx.engine.device.sampling import (
    BLOCK,
    STRIDE,
    Draw,
    RowSampler,
    best,
    draw,
    keep,
    lowest_weight,
    take,
)
from omlx.engine.types import Sampling
from omlx.receipts.plain import margin
from tests.lanes import few

DTYPES = (mx.bfloat16, mx.float16, mx.float32)
SHAPES = ("normal", "peaked", "ties", "masked", "equal")
ROWS = 10
NEAR_TIE = 1e-3
"""Logits that decide a token where the rounding of mlx-lm's sums does; ours have no order."""


@dataclass(frozen=True)
class Window:
    """Logits [rows, V] of rows that are drawn in one call, and their draws."""

    logits: mx.array
    draws: list[Draw]


def logits_of(size: int, shape: str, dtype: mx.Dtype, seed: int) -> mx.array:
    chance, key = random.Random(seed), mx.random.key(seed)
    logits = mx.random.normal((ROWS, size), key=key) * chance.choice((0.5, 1.0, 2.0, 3.0, 5.0))
    if shape == "peaked":
        logits = logits + mx.where(logits > logits.max() * 0.6, 8.0, 0.0)
    if shape == "ties":
        logits = mx.round(logits * 8) / 8 + 16
    if shape == "equal":
        logits = mx.zeros((ROWS, size))
    logits = logits.astype(dtype)
    if shape == "masked":  # as a grammar leaves them
        allowed = mx.random.uniform(shape=(ROWS, size), key=mx.random.key(seed + 1)) < 0.1
        logits = mx.where(allowed | (mx.arange(size) == seed % size), logits, -mx.inf)
    return logits


def filters_of(chance: random.Random, size: int) -> dict[str, Any]:
    """Choose among few values: mlx-lm's filters are compiled for each."""
    return {
        "top_p": chance.choice((0.0, 0.05, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99)),
        "top_k": chance.choice((0, 0, 1, 20, min(size - 1, 700))),
        "min_p": chance.choice((0.0, 0.0, 0.02, 0.3)),
        "xtc_probability": chance.choice((0.0, 0.0, 1.0)),
        "xtc_threshold": chance.choice((0.005, 0.05, 0.2)),
        "xtc_spared": (size // 2, size + 9),
    }


def windows(size: int, count: int) -> Iterator[Window]:
    """Yield windows of `ROWS` rows over a vocabulary of `size`, `count` draws in all."""
    for number in range(count // ROWS):
        chance = random.Random(1_000_003 * size + number)
        sampling = Sampling(
            temperature=chance.uniform(0.1, 2.0), seed=number, **filters_of(chance, size)
        )
        sampler = RowSampler(sampling, size)
        logits = logits_of(size, chance.choice(SHAPES), chance.choice(DTYPES), number)
        yield Window(logits, [Draw(sampler, position) for position in range(ROWS)])


def differences(size: int, count: int) -> list[float]:
    """Return by how much, in logits, each token that differs from mlx-lm's had been another."""
    gaps = []
    for window in windows(size, count):
        ours = draw(window.logits, window.draws).tolist()
        theirs = mlx_lm_draw(window.logits, window.draws).tolist()
        for row, place in enumerate(window.draws):
            if ours[row] != theirs[row]:
                gaps.append(margin(window.logits[row], place, theirs[row]))
    return gaps


@pytest.mark.parametrize(("size", "count"), [(50, 400), (5_000, 400), (150_000, 40)])
def test_tokens_are_those_of_mlx_lms_filters(size: int, count: int) -> None:
    gaps = differences(size, count)
    assert len(gaps) <= 1
    assert all(gap < NEAR_TIE for gap in gaps)


@pytest.mark.slow
def test_a_hundred_thousand_tokens_are_those_of_mlx_lms_filters() -> None:
    counts = {50: 40_000, 500: 30_000, 5_000: 20_000, 32_000: 8_500, 150_000: 1_500}
    gaps = [gap for size, count in counts.items() for gap in differences(size, count)]
    assert len(gaps) <= 5
    assert all(gap < NEAR_TIE for gap in gaps)


@pytest.mark.parametrize(
    ("k", "size"),
    few(
        product((1, 4, 64, BLOCK // 4, BLOCK), (5, BLOCK, BLOCK + 1, 3 * BLOCK - 7, 40_000)),
        every=3,
    ),
)
def test_the_best_are_those_of_a_sort_and_of_equal_ones_the_first(size: int, k: int) -> None:
    k = min(k, size - 1)
    for seed, levels in enumerate((2.0, 50.0, 1e6)):
        values = mx.random.normal((2, size), key=mx.random.key(seed))
        values = mx.where(values < -1.0, -mx.inf, mx.round(values * levels) / levels)
        for row, found in zip(values.tolist(), best(values, k).tolist(), strict=True):
            ranked = sorted(range(size), key=lambda i, row=row: (-row[i], i))
            assert found == sorted(ranked[:k])


def units(weights: mx.array) -> list[int]:
    scale = (1 << 24) / weights.sum(axis=-1, keepdims=True)
    units: list[int] = (weights * scale + 0.5).astype(mx.int32)[0].tolist()
    return units


@pytest.mark.parametrize("size", [1, 2, 37, 1000, 5000])
@pytest.mark.parametrize("top_p", [1e-6, 0.05, 0.5, 0.9, 0.999, 1 - 2**-24])
def test_the_nucleus_ends_where_its_mass_reaches_top_p(size: int, top_p: float) -> None:
    for seed, levels in enumerate((1.0, 1e6)):
        logits = mx.round(mx.random.normal((1, size), key=mx.random.key(seed)) * 3 * levels)
        weights = mx.exp((logits - logits.max()) / levels)
        masses, floats = units(weights), weights[0].tolist()
        # The smallest limit in whole units: a mass that reaches it has the share `top_p`.
        limit = ceil(float(mx.array(sum(masses)) * top_p))
        above, lowest = 0, 0.0
        for weight, mass in sorted(zip(floats, masses, strict=True), reverse=True):
            if above >= limit:
                break
            above, lowest = above + mass, weight
        assert abs(Fraction(limit) - Fraction(top_p) * sum(masses)) < 3
        assert lowest_weight(weights, weights, top_p).item() == lowest


@pytest.mark.parametrize("size", [1_000, 30_011])
def test_the_nucleus_does_not_depend_on_how_many_candidates_are_sorted(size: int) -> None:
    for scale in (0.01, 1.0, 4.0):
        logits = mx.random.normal((3, size), key=mx.random.key(7)).astype(mx.bfloat16) * scale
        weights = mx.exp(logits.astype(mx.float32))
        for top_p in (0.05, 0.5, 0.97, 0.9999):
            lowest = [
                lowest_weight(weights, weights, top_p, leaf).tolist()
                for leaf in (1, 2, 64, 999, size)
            ]
            assert lowest[1:] == lowest[:-1]


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.97, 0.9999])
def test_the_nucleus_does_not_depend_on_what_the_sample_of_candidates_holds(top_p: float) -> None:
    size = 6_000
    sampled = mx.arange(size) % STRIDE == 0
    inner = mx.where(sampled, 0.001, 0.5)
    first = mx.arange(size) == 0
    rows = [
        mx.where(first, 1.0, inner),  # of what is as heavy as the border, it holds nothing
        mx.where(sampled, 0.5, 0.001),  # nothing but the heaviest
        mx.where(first, 1.0, 0.0),  # one token has all
        mx.ones(size),
    ]
    weights = mx.stack(rows)
    sorted_at_once = lowest_weight(weights, weights, top_p, size)
    assert mx.array_equal(lowest_weight(weights, weights, top_p, 16), sorted_at_once)


@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("k", [130, 2_000])
def test_the_nucleus_of_the_best_does_not_depend_on_how_many_are_sorted(
    scale: float, k: int
) -> None:
    logits = mx.random.normal((3, 9_000), key=mx.random.key(11)).astype(mx.bfloat16) * scale
    weights = mx.exp(logits.astype(mx.float32))
    candidates = take(weights, best(weights, k))
    for top_p in (0.01, 0.3, 0.9):  # the best have this share, or not
        expected = lowest_weight(weights, candidates, top_p, k)
        assert mx.array_equal(lowest_weight(weights, candidates, top_p, 32), expected)


def test_rows_of_a_window_are_filtered_as_each_alone() -> None:
    for window in windows(6_000, 200):
        _, *filters = window.draws[0].sampler.filters
        logits = window.logits.astype(mx.float32)
        kept, ids = keep(logits, *filters)
        for row in range(ROWS):
            alone, own_ids = keep(logits[row : row + 1], *filters)
            assert mx.array_equal(kept[row : row + 1], alone)
            assert ids is None or mx.array_equal(ids[row], own_ids[0])
