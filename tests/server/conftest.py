from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.settings.schema import Settings
from tests.server.dialects import DIALECTS
from tests.server.running import DRAFT, Running, omlx
from tests.server.spelling import spelling_pool


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with omlx(Settings(draft_model=DRAFT)) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[OpenAI]:
    with DIALECTS["chat"].client(server.url) as client:
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
def claude(server: Running) -> Iterator[Anthropic]:
    with DIALECTS["messages"].client(server.url) as client:
        yield client


@pytest.fixture
def spelling_claude(speller: Running) -> Iterator[Anthropic]:
    with DIALECTS["messages"].client(speller.url) as client:
        yield client


@pytest.fixture
def llama(server: Running) -> Iterator[Any]:
    """The client of Ollama."""
    with DIALECTS["ollama"].client(server.url) as client:
        yield client


@pytest.fixture
def spelling_llama(speller: Running) -> Iterator[Any]:
    with DIALECTS["ollama"].client(speller.url) as client:
        yield client


@pytest.fixture
def spelling(speller: Running) -> Iterator[OpenAI]:
    with DIALECTS["chat"].client(speller.url) as client:
        yield client
