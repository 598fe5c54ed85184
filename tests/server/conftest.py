from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.settings.schema import Settings
from tests.server.running import DRAFT, Running, omlx
from tests.server.spelling import spelling_pool


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with omlx(Settings(draft_model=DRAFT)) as running:
        yield running


@pytest.fixture
def client(server: Running) -> OpenAI:
    return server.openai


@pytest.fixture
def http(server: Running) -> httpx.Client:
    return server.http


@pytest.fixture
def claude(server: Running) -> Anthropic:
    return server.claude


@pytest.fixture
def llama(server: Running) -> Any:
    return server.ollama


@pytest.fixture(scope="session")
def speller() -> Iterator[Running]:
    """A server whose model repeats the last message."""
    with omlx(build=spelling_pool) as running:
        yield running


@pytest.fixture
def spelling(speller: Running) -> OpenAI:
    return speller.openai


@pytest.fixture
def spelling_claude(speller: Running) -> Anthropic:
    return speller.claude


@pytest.fixture
def spelling_llama(speller: Running) -> Any:
    return speller.ollama
