"""Engine threads of the tests about models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omlx.engine.thread import EngineThread
from tests.engine.threads import started


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    with started() as engine:
        yield engine
