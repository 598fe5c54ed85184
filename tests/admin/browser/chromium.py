"""A real browser: the installed Chromium or Chrome, driven by Playwright, which itself comes with
the shell without windows.

Pages are watched: console errors, failed scripts, breaches of the content policy and requests to
other hosts are complaints, and a complaint fails the test.
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
from weakref import WeakKeyDictionary

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

NAMES: Final = (
    "chromium-headless-shell",  # a profile takes a third of the processor's time
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
)
APPLICATIONS: Final = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
DESKTOP: Final = {"width": 1280, "height": 900}
PHONE: Final = {"width": 375, "height": 812}
NARROW: Final = {"width": 320, "height": 640}
VIEWPORTS: Final = (DESKTOP, PHONE, NARROW)
WIDE: Final = {"width": 1920, "height": 1080}
EVERY_SIZE: Final = (
    NARROW,
    {"width": 390, "height": 844},
    {"width": 768, "height": 1024},
    DESKTOP,
    WIDE,
)
SCHEMES: Final = ("light", "dark")
PATIENCE_MS: Final = 60_000
"""What is expected of a page comes within this time, also on a busy machine."""
_FLAGS: Final = (
    *("--disable-background-networking", "--disable-component-update", "--no-first-run"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_BLOCKED: Final = "Service Worker registration blocked by Playwright"
_VIOLATIONS: Final = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


def find() -> str | None:
    """Return the path of the browser, if there is one."""
    installed = (shutil.which(name) for name in NAMES)
    return next((path for path in installed if path), None) or next(
        (path for path in APPLICATIONS if Path(path).exists()), None
    )


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """The browser, headless, while the block runs."""
    expect.set_options(timeout=PATIENCE_MS)
    # A library preloaded into this process, such as a BLAS, must not be preloaded by the browser.
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


@contextmanager
def opened() -> Iterator[Browser]:
    """The installed browser, for a script. Raises SystemExit if there is none."""
    path = find()
    if path is None:
        raise SystemExit("No Chromium or Chrome found.")
    with launched(path) as browser:
        yield browser


@dataclass
class Complaints:
    """Errors of a page, without those that match a pattern in `expected`."""

    origin: str
    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        self.expected.append(pattern)

    def check(self) -> None:
        unexpected = [
            complaint
            for complaint in self.found
            if not any(re.search(pattern, complaint) for pattern in self.expected)
        ]
        assert unexpected == []

    def watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.found.append(f"script: {error}"))

    def asked(self, request: Request) -> None:
        """Complain of requests to other hosts, which have no addresses here.

        Playwright's routes, which could abort them, pass each request through this process and
        turn the browser's cache off.
        """
        if not request.url.startswith((f"{self.origin}/", "data:")):
            self.found.append(f"request: {request.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and _BLOCKED not in message.text:
            self.found.append(f"console: {message.text} {message.location.get('url', '')}")


_COMPLAINTS: Final = WeakKeyDictionary[BrowserContext, Complaints]()


def complaints_of(page: Page) -> Complaints:
    """Return the complaints of all pages of its profile."""
    return _COMPLAINTS[page.context]


@contextmanager
def watched(
    browser: Browser, origin: str, *expected: str, **options: Any
) -> Iterator[BrowserContext]:
    """A new profile at `origin`, with `options` of a page.

    Asserts that its pages complained of nothing but what matches a pattern in `expected`.
    """
    complaints = Complaints(origin, expected=[*expected])
    context = browser.new_context(
        **{
            "base_url": origin,
            "viewport": DESKTOP,
            "locale": "en-US",
            "service_workers": "block",  # the page of a dead server is the browser's
            **options,
        }
    )
    context.set_default_timeout(PATIENCE_MS)
    _COMPLAINTS[context] = complaints
    try:
        context.add_init_script(_VIOLATIONS)
        context.on("request", complaints.asked)
        context.on("page", complaints.watch)
        yield context
        complaints.check()
    finally:
        context.close()
