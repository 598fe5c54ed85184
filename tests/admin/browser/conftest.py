from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.admin.browser import chromium
from tests.admin.browser.checks import AXE
from tests.admin.browser.site import Site, open_busy_site, open_site

PATIENCE_MS = 30_000
"""What is expected of a page comes within so long; Playwright's five seconds are few on a busy
machine."""


@contextmanager
def opened() -> Iterator[Browser]:
    """The installed browser. While it is open, no test of its process can run an event loop."""
    path = chromium.find()
    if path is None:
        _missing("no Chromium or Chrome: `make test` installs Debian's as root")
    expect.set_options(timeout=PATIENCE_MS)
    with chromium.launched(path) as browser:
        yield browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with opened() as browser:
        yield browser


@pytest.fixture(scope="package")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.exists():
        _missing("no axe-core: `make assets` brings it, where npm is")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="package")
def busy(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that has answered requests. A test that changes settings uses `fresh`."""
    with open_busy_site(browser, tmp_path_factory.mktemp("home")) as site:
        yield site


@pytest.fixture
def fresh(browser: Browser, tmp_path: Path) -> Iterator[Site]:
    """A server that has just been started, with no model in memory."""
    with open_site(browser, tmp_path, default=None) as site:
        yield site


def _missing(reason: str) -> None:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
