from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.server.media.pictures import QWEN, SMOL, seeing
from tests.server.running import Running, omlx


@pytest.fixture(scope="session")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of models that see: images of many sizes, and images in tiles."""
    with seeing(tmp_path_factory.mktemp("seeing"), QWEN, SMOL) as running:
        yield running


@pytest.fixture
def http(seer: Running) -> httpx.Client:
    return seer.http


@pytest.fixture(scope="session")
def http_text() -> Iterator[httpx.Client]:
    """A client of a server whose model reads text alone."""
    with omlx() as running:
        yield running.http
