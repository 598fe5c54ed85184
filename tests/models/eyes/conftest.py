"""Tests of eyes need the extra omlx[vision], which `make test` installs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("mlx_vlm", "PIL") if find_spec(name) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where the extra is missing; in CI they run, and fail."""
    if not MISSING or os.environ.get("CI"):
        return
    here = Path(__file__).parent
    skip = pytest.mark.skip(reason="needs the extra: pip install 'omlx[vision]', or make setup-dev")
    for item in items:
        if here in item.path.parents and "needs_extra" in item.keywords:
            item.add_marker(skip)
