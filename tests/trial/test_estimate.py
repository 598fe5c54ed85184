"""The estimated duration and memory of a trial."""

from __future__ import annotations

import pytest

from omlx.trial.estimate import Estimate, Weights, estimate


def estimated(
    drafts: int = 1, *, rate: float | None = 20.0, loaded: bool = True, limit: int = 1 << 40
) -> Estimate:
    names = [f"org/{number}" for number in range(drafts)]
    return estimate(
        drafts=names,
        kinds=4,
        tokens=128,
        target=Weights(8_000_000_000, loaded),
        weights=[Weights(1_000_000_000 * (number + 1), False) for number in range(drafts)],
        rate=rate,
        device="gpu",
        limit_bytes=limit,
    )


def test_an_estimate_grows_with_what_is_asked() -> None:
    one, two = estimated(1), estimated(2)
    assert 0 < one.least_s < one.most_s < two.most_s
    assert one.least_s == pytest.approx(3 * 4 * 4 * 128 / 20, rel=0.5)
    assert estimated(1, loaded=False).least_s > one.least_s
    assert not one.guessed
    assert estimated(rate=None).guessed


def test_memory_is_that_of_the_model_and_of_two_drafts_at_most() -> None:
    gb = 1_000_000_000
    assert [estimated(n).memory_bytes // gb for n in range(4)] == [0, 1, 3, 5]
    assert estimated(3, loaded=False).memory_bytes == 13 * gb
    assert estimated(3, limit=13 * gb).fits
    assert not estimated(3, limit=12 * gb).fits
