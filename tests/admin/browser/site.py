"""A server with the dashboard and the bundled models on a real socket, and logged-in browsers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, expect

from omlx.admin.credentials import Credentials
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import Registry
from omlx.models.pool.load_queue import ignore_progress
from omlx.models.pool.load_weights import Report
from omlx.models.pool.speculation import check_value
from omlx.settings.schema import Value
from omlx.settings.store import Store
from tests.admin.browser.chromium import watched
from tests.admin.running import API, administered
from tests.server.running import DEMO, DRAFT, TARGET, Running

CHAT = "/v1/chat/completions"
CLIPBOARD = ("clipboard-read", "clipboard-write")
AGENT = f"python-httpx/{httpx.__version__}"
SCRIPT = re.compile(r"/app(-\w+)?\.js$")
"""The script of a page, bundled or not."""


@dataclass(frozen=True)
class Site:
    browser: Browser
    running: Running
    home: Path

    @property
    def url(self) -> str:
        return self.running.url

    @contextmanager
    def open(
        self, path: str = "", *expected: str, logged_in: bool = True, **options: Any
    ) -> Iterator[Page]:
        """A page at `path` in a new browser profile that may complain of what is `expected`.

        Among the `options` are `locale`, `viewport` and `color_scheme`.
        """
        with watched(self.browser, self.url, *expected, **options) as context:
            if logged_in:
                log_in(context, self.url, self.home)
            page = context.new_page()
            if path:
                page.goto(path)
            yield page

    def post(self, agent: str = "probe/1.0", text: str = "x", **fields: Any) -> httpx.Response:
        """Ask for a chat completion as the program `agent`."""
        body, headers = self._body(text, fields), {"User-Agent": agent}
        return httpx.post(f"{self.url}{CHAT}", json=body, headers=headers, timeout=120)

    def ask(self, text: str = "Name three rivers.", **fields: Any) -> dict[str, Any]:
        """Return a complete chat completion of the API."""
        answer = self.post(AGENT, text, **fields)
        assert answer.status_code == 200, answer.text
        completion: dict[str, Any] = answer.json()
        return completion

    @contextmanager
    def asking(self, text: str = "Name three rivers.", **fields: Any) -> Iterator[None]:
        """Run the block while a completion is streamed; its end is not awaited."""
        body = {**self._body(text, fields), "stream": True}
        with httpx.stream("POST", f"{self.url}{CHAT}", json=body, timeout=120) as answer:
            assert answer.status_code == 200
            yield

    def _body(self, text: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": TARGET,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 24,
            **fields,
        }


def log_in(context: BrowserContext, origin: str, home: Path) -> None:
    """Log a browser profile in, without a page."""
    token = Credentials(home).invite()
    answer = context.request.post(
        f"{origin}{API}/login", data={"token": token}, headers={"Origin": origin}
    )
    assert answer.ok


def stored(site: Site, model: str | None = None) -> Mapping[str, Value]:
    """Return the settings that are kept for all models, or for one of them."""
    return Store(site.home).read().layer(model).values


def save(page: Page, said: str) -> None:
    """Save the form, and wait for a confirmation that says this."""
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-saved]:visible", has_text=said)).to_be_visible()


def copied(page: Page) -> str:
    """Return the text of the clipboard; the profile needs the permissions `CLIPBOARD`."""
    return str(page.evaluate("navigator.clipboard.readText()"))


def settled(page: Page) -> None:
    """Wait until buttons that have changed their meaning can be clicked."""
    expect(page.locator("[data-settling]")).to_have_count(0)


def link_models(folder: Path, count: int) -> None:
    """Fill a folder with models `org-0/model-00` and so on, which are the bundled draft's files."""
    for number in range(count):
        model = folder / f"org-{number % 3}" / f"model-{number:02d}"
        model.mkdir(parents=True)
        for file in (BUNDLED / DRAFT).iterdir():
            (model / file.name).symlink_to(file)


@contextmanager
def open_site(
    browser: Browser,
    home: Path,
    registry: Registry = DEMO,
    *,
    default: str | None = TARGET,
    report: Report = ignore_progress,
    **flags: Value,
) -> Iterator[Site]:
    with administered(home, registry, default, report, **flags) as server:
        yield Site(browser, server.running, home)


@contextmanager
def open_busy_site(browser: Browser, home: Path, registry: Registry = DEMO) -> Iterator[Site]:
    """A site with a draft model and a model name mapping that has answered a few requests."""
    store = Store(home, check_value)
    store.patch({"draft_model": DRAFT}, TARGET)
    store.patch({"model_map": (f"claude-*haiku*={DRAFT}", f"claude-*={TARGET}")})
    with open_site(browser, home, registry) as site:
        site.ask(max_tokens=1)
        endless = {"max_tokens": 96, "logit_bias": site.running.endless()}
        for number in range(3):
            site.ask(seed=number, **endless, speculation="draft" if number else "auto")
        yield site
