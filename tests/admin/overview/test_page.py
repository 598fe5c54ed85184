"""The welcome of the first page."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.admin.models.model_snapshot import ModelSnapshot, suggested
from omlx.admin.overview import Live, Welcome, welcome
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.resident import ModelStatus, State

SMALL, LARGE, HUGE = (
    ModelEntry(f"org/{n}", Path(str(n)), "home", size_bytes=n) for n in (1, 50, 900)
)


def live(prompt: int = 0) -> Live:
    return Live(0.0, 0.0, 0, 0, 0, 100, prompt, 0, (), (), (), ())


def test_the_largest_model_that_fits_is_suggested() -> None:
    assert suggested([SMALL, LARGE, HUGE], 100) == "org/50"
    assert suggested([HUGE], 100) == "org/900"
    assert suggested([], 100) is None


@pytest.mark.parametrize(
    ("state", "prompt", "shown"),
    [
        (None, 0, Welcome("org/1")),
        (State.LOADING, 0, Welcome("org/1", loading=True)),
        (State.READY, 0, None),
        (None, 5, None),
    ],
)
def test_it_welcomes_until_a_model_has_been_in_memory(
    state: State | None, prompt: int, shown: Welcome | None
) -> None:
    resident = [] if state is None else [ModelSnapshot(SMALL, ModelStatus(state))]
    assert welcome(live(prompt), resident, "org/1") == shown
