from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from omlx.settings.schema import Settings
from tests.server.running import DRAFT, Running, omlx
from tests.server.spelling import spelling_pool


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with omlx(Settings(draft_model=DRAFT)) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


@pytest.fixture(scope="session")
def speller() -> Iterator[Running]:
    """A server whose model repeats the last message."""
    with omlx(build=spelling_pool) as running:
        yield running


@pytest.fixture
def spelling(speller: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{speller.url}/v1", api_key="none", max_retries=0) as client:
        yield client
