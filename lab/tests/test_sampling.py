"""The benchmark of sampling compares draws of the same tokens, trial by trial."""

from __future__ import annotations

from itertools import count

import mlx.core as mx
import pytest

from lab.bench.sampling import FILTERS, compare, mlx_lm_draw
from omlx.engine.device.sampling import Draw, RowSampler, draw


@pytest.mark.parametrize("name", FILTERS)
def test_both_sides_draw_the_same_tokens(name: str) -> None:
    sampler = RowSampler(FILTERS[name], 900)
    draws = [Draw(sampler, position) for position in range(30)]
    logits = mx.random.normal((30, 900), key=mx.random.key(1)) * 3
    assert draw(logits, draws).tolist() == mlx_lm_draw(logits, draws).tolist()


def test_each_side_is_timed_once_a_trial_after_the_first() -> None:
    ticks = count()
    theirs, ours = compare(FILTERS["min_p"], 50, 2, 3, lambda: float(next(ticks)))
    assert theirs == ours == [1.0] * 3
    assert next(ticks) == 4 * 4
