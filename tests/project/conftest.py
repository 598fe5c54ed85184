from __future__ import annotations

from pathlib import Path

import pytest

from tests.wheel import build_wheel


@pytest.fixture(scope="package")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
