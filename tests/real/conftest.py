from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest

from omlx.settings.schema import Settings
from tests.real.models import MINILM, REGISTRY, SMOLLM2
from tests.server.running import Running, omlx

PATIENCE_S = 3600
"""Thousands of tokens take minutes on a busy processor; pytest's own time-out comes before."""


@pytest.fixture(scope="session", autouse=True)
def fetched() -> None:
    """Skip without the models; in CI, fail."""
    if all((entry.path / "model.safetensors").is_file() for entry in (SMOLLM2, MINILM)):
        return
    reason = "SmolLM2 and MiniLM are not here: `make real` brings them"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def server(fetched: None) -> Iterator[Running]:
    with omlx(Settings(), registry=REGISTRY, default=SMOLLM2.id) as running:
        yield running


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        yield http
