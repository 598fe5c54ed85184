"""The margin of a token that was not drawn: how far logits are from drawing it."""

from __future__ import annotations

from math import inf

import mlx.core as mx
import pytest

from omlx.engine.device.sampling import Draw, RowSampler, draw
from omlx.engine.types import Sampling
from omlx.receipts.plain import margin

SIZE, NUDGE = 40, 1e-3
FILTERS = {
    "greedy": Sampling(temperature=0.0),
    "warm": Sampling(),
    "top_k": Sampling(top_k=6),
    "top_p": Sampling(top_p=0.7),
    "min_p": Sampling(min_p=0.1),
    "xtc": Sampling(xtc_probability=1.0, xtc_threshold=0.05),
    "xtc_spared": Sampling(xtc_probability=0.5, xtc_threshold=0.04, xtc_spared=(3, 12, 30)),
    "all": Sampling(temperature=0.7, top_k=9, top_p=0.8, min_p=0.05),
}


def drawn(logits: mx.array, sampling: Sampling, position: int = 3) -> tuple[int, Draw]:
    row = Draw(RowSampler(sampling, SIZE), position)
    return int(draw(logits[None], [row]).item()), row


def logits_of(seed: int, levels: float) -> mx.array:
    """Random logits, rounded so that some tie."""
    return mx.round(mx.random.normal((SIZE,), key=mx.random.key(seed)) * levels) / levels * 2


@pytest.mark.parametrize("name", FILTERS)
def test_what_a_nudge_of_the_logits_draws_is_a_near_tie(name: str) -> None:
    parted = 0
    for seed in range(60):
        logits = logits_of(seed, 3.0)
        noise = mx.random.uniform(-NUDGE, NUDGE, (SIZE,), key=mx.random.key(1000 + seed))
        token, row = drawn(logits, FILTERS[name], position=seed)
        other, _ = drawn(logits + noise, FILTERS[name], position=seed)
        assert margin(logits, row, token) == 0.0
        assert margin(logits, row, other) <= 4 * NUDGE, (seed, token, other)
        parted += token != other
    assert parted > 0 or name in ("warm", "min_p")  # noise lies between ties of these


@pytest.mark.parametrize("name", ["greedy", "warm"])
def test_a_token_is_drawn_as_soon_as_its_logit_is_higher_by_the_margin(name: str) -> None:
    for seed in range(10):
        logits = logits_of(seed, 100.0)
        token, row = drawn(logits, FILTERS[name])
        other = (token + 7) % SIZE
        gap = margin(logits, row, other)
        raised = [mx.where(mx.arange(SIZE) == other, gap * part, 0.0) for part in (0.99, 1.01)]
        found = [drawn(logits + more, FILTERS[name])[0] for more in raised]
        assert found == [token, other]


def test_a_token_outside_the_filters_has_to_get_inside() -> None:
    logits = mx.array([5.0, 4.0, 1.0] + [-9.0] * (SIZE - 3))
    _, row = drawn(logits, FILTERS["top_k"])
    assert margin(logits, row, SIZE - 1) < inf
    _, row = drawn(logits, Sampling(top_k=2))
    assert margin(logits, row, 2) >= 3.0
    _, row = drawn(logits, Sampling(min_p=0.5))
    assert margin(logits, row, 2) == pytest.approx(4.0 - 0.6931, abs=1e-3)
