"""Engine threads of the tests about models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omlx.engine.thread import EngineThread


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineThread]:
    engine = EngineThread()
    engine.start()
    yield engine
    engine.stop()
