"""A server with the dashboard and the bundled models on a real socket, and logged-in browsers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, BrowserContext, Page

from omlx.admin.credentials import Credentials
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import Registry
from omlx.models.pool.load_queue import ignore_progress
from omlx.models.pool.load_weights import Report
from omlx.models.pool.speculation import check_value
from omlx.settings.schema import Value
from omlx.settings.store import Store
from tests.admin.browser.chromium import Complaints, watched
from tests.admin.running import API, administered
from tests.server.running import DEMO, DRAFT, TARGET, Running

CHAT = "/v1/chat/completions"
SCRIPT = re.compile(r"/app(-\w+)?\.js$")
"""The script of a page, bundled or not."""


@dataclass(frozen=True)
class Visit:
    page: Page
    complaints: Complaints


@dataclass(frozen=True)
class Site:
    browser: Browser
    running: Running
    home: Path

    @property
    def url(self) -> str:
        return self.running.url

    @contextmanager
    def visit(self, *, logged_in: bool = True, **options: Any) -> Iterator[Visit]:
        """A new browser profile, with `options` such as `locale`, `viewport`, `color_scheme`."""
        with watched(self.browser, self.url, **options) as (context, complaints):
            if logged_in:
                log_in(context, self.url, self.home)
            yield Visit(context.new_page(), complaints)

    def ask(self, text: str = "Name three rivers.", **fields: Any) -> dict[str, Any]:
        """Return a complete chat completion of the API."""
        answer = httpx.post(f"{self.url}{CHAT}", json=self._body(text, fields), timeout=120)
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
