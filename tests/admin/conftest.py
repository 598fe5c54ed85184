from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.admin.running import Administered, administered


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def browser(server: Administered) -> Iterator[httpx.Client]:
    with server.browser() as client:
        yield client


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Administered]:
    with administered(tmp_path) as running:
        yield running
