"""A real browser: the machine's own Chromium or Chrome, driven by Playwright.

A page is watched: an error in its console, a script that fails, a breach of the content policy, a request to anywhere
but the server's own address is a complaint, and a complaint fails the test.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Route,
    sync_playwright,
)

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS: Final = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 375, "height": 812}
_FLAGS: Final = ("--disable-background-networking", "--disable-component-update", "--no-first-run")
_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def find() -> str | None:
    """Where the browser is, if there is one."""
    installed = (shutil.which(name) for name in NAMES)
    return next((path for path in installed if path), None) or next(
        (path for path in APPLICATIONS if Path(path).exists()), None
    )


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """The browser, headless, while the block runs."""
    # A library that is loaded into this process, such as a fast BLAS, is no business of the browser's.
    preload = os.environ.pop("LD_PRELOAD", None)
    try:
        playwright = sync_playwright().start()
    finally:
        if preload is not None:
            os.environ["LD_PRELOAD"] = preload
    try:
        sandbox = os.geteuid() != 0  # Chromium has none for root
        browser = playwright.chromium.launch(
            executable_path=path, args=list(_FLAGS), chromium_sandbox=sandbox
        )
        yield browser
        browser.close()
    finally:
        playwright.stop()


@dataclass
class Complaints:
    """What went wrong in a page, but for what a test says is meant to: patterns in `expected`."""

    origin: str
    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        self.expected.append(pattern)

    def check(self) -> None:
        assert [
            each for each in self.found if not any(re.search(one, each) for one in self.expected)
        ] == []

    def watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.found.append(f"script: {error}"))

    def guard(self, route: Route) -> None:
        """Let nothing out."""
        request: Request = route.request
        if request.url.startswith((f"{self.origin}/", "data:")):
            route.continue_()
        else:
            self.found.append(f"request: {request.url}")
            route.abort()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"console: {message.text} {message.location.get('url', '')}")


@contextmanager
def watched(
    browser: Browser, origin: str, **options: Any
) -> Iterator[tuple[BrowserContext, Complaints]]:
    """A fresh profile at `origin`, with a page's `options`. Raises AssertionError at the end if anybody complained."""
    complaints = Complaints(origin)
    context = browser.new_context(
        **{"base_url": origin, "viewport": DESKTOP, "locale": "en-US", **options}
    )
    try:
        context.add_init_script(_VIOLATIONS)
        context.route("**/*", complaints.guard)
        context.on("page", complaints.watch)
        yield context, complaints
        complaints.check()
    finally:
        context.close()
