from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from omlx.models.pool.speculation import check_value
from omlx.settings.store import Store
from tests.admin.browser import chromium
from tests.admin.browser.checks import missing
from tests.admin.browser.site import Site, open_busy_site, open_site
from tests.server.running import DRAFT, TARGET


@contextmanager
def opened() -> Iterator[Browser]:
    """The installed browser. While it is open, no test of its process can run an event loop."""
    path = chromium.find()
    if path is None:
        missing("no Chromium or Chrome: `make test` installs Debian's as root")
    with chromium.launched(path) as browser:
        yield browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with opened() as browser:
        yield browser


@pytest.fixture(scope="package")
def busy(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that has answered requests. A test that changes settings uses `fresh`."""
    with open_busy_site(browser, tmp_path_factory.mktemp("home")) as site:
        yield site


@pytest.fixture(scope="package")
def chatting(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose model drafts at any speed of this machine."""
    home = tmp_path_factory.mktemp("home")
    drafts = {"draft_model": DRAFT, "speculation": "draft", "num_draft_tokens": 4}
    Store(home, check_value).patch(drafts, TARGET)
    with open_site(browser, home) as site:
        yield site


@pytest.fixture
def fresh(browser: Browser, tmp_path: Path) -> Iterator[Site]:
    """A server that has just been started, with no model in memory."""
    with open_site(browser, tmp_path, default=None) as site:
        yield site
