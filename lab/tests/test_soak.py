from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from lab.soak.requests import KINDS, soak_request
from lab.soak.result import BOUNDS_PER_HOUR, growth
from lab.soak.run import Plan, soak

MINUTES = [number / 6 for number in range(361)]


@pytest.mark.slow
def test_a_few_seconds_of_the_soak_have_no_errors(tmp_path: Path) -> None:
    """A small part of `make soak`, too short for growth."""
    result = soak(Plan(seconds=3, streams=3, widen=4), tmp_path)
    assert result.errors == []
    assert sum(result.counts.kinds.values()) >= 3
    assert result.loads >= 3
    assert all(max(values) > 0 for name, values in result.series.items() if "cache" not in name)


def test_requests_are_of_all_kinds_and_functions_of_their_numbers() -> None:
    first, second = ([soak_request(number, "m") for number in range(200)] for _ in range(2))
    assert first == second
    assert {request.kind for request in first} == set(KINDS)


@pytest.mark.parametrize("slope", [0.0, 3.0, 30.0])
def test_growth_is_the_slope_of_the_second_half(slope: float) -> None:
    rng = Random(1)
    values = [100 + slope * minute / 60 + rng.uniform(-2, 2) for minute in MINUTES]
    values[:180] = MINUTES[:180]  # it warms up
    found = growth(MINUTES, values)
    assert abs(found.per_hour - slope) < 3
    expected = "flat" if slope < 12 else "GROWS"
    assert found.verdict(BOUNDS_PER_HOUR["mlx active, MiB"]) == expected
    assert found.mean == pytest.approx(100 + slope * 0.75, abs=2)


def test_a_sawtooth_does_not_grow() -> None:
    values = [300 + 60 * (minute % 4) / 4 for minute in MINUTES]
    assert not growth(MINUTES, values).exceeds(BOUNDS_PER_HOUR["memory of the processes, MiB"])
