"""`omlx serve` as a process that a test may kill, and a login by its link."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page

from tests.admin.browser.chromium import watched
from tests.cli.serving import OMLX, started

LINK: Final = "/admin/login?token="


@contextmanager
def serving(
    home: Path, port: int, *arguments: str, program: Sequence[str] = OMLX, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its link that logs in. It is killed at the end."""
    words = (*arguments, "--home", str(home), "--port", str(port))
    with started(home, *words, until=LINK, program=program, **variables) as server:
        yield server.process, next(w for w in server.announced[-1].split() if LINK in w)


def origin_of(link: str) -> str:
    return "{0.scheme}://{0.netloc}".format(urlsplit(link))


@contextmanager
def logged_in(
    browser: Browser, home: Path, *arguments: str, expected: str = "(?!)", **variables: str
) -> Iterator[tuple[BrowserContext, subprocess.Popen[str], str]]:
    """A profile that is logged in at a server of its own, the server's process and link."""
    with (
        serving(home, 0, *arguments, **variables) as (server, link),
        watched(browser, origin_of(link), expected) as context,
    ):
        log_in(context.new_page(), link)
        yield context, server, link


def log_in(page: Page, link: str) -> None:
    page.goto(link)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/admin/password*")  # which a first login offers to set
