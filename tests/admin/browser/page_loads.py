"""Time until each page can be used: `scripts/bench-dashboard pages`.

From the start of a navigation to the end of DOMContentLoaded, when all behaviours are attached; on
the chat page until its conversation is shown. *First* is a new browser profile, *again* one that
has visited the page. Medians, from `omlx serve` on loopback, which has answered requests.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, Page

from tests.admin.browser import chromium
from tests.admin.browser.pages import PAGES, Listed
from tests.admin.browser.process import serving
from tests.admin.browser.site import link_models, log_in
from tests.server.running import TARGET

AT_A_TIME: Final = 8
FEW: Final = 4
"""Requests that the server has answered in any case."""

_USABLE = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const files = performance.getEntriesByType("resource").length;
  return [Math.max(page.domContentLoadedEventEnd, window.ready ?? 0), files];
}"""
_NOTE_READY = """addEventListener("DOMContentLoaded", () => {
  const chat = document.querySelector("omlx-chat");
  if (chat === null) return;
  const note = () => { if ("ready" in chat.dataset) window.ready ??= performance.now(); };
  new MutationObserver(note).observe(chat, { attributes: true });
  note();
});"""


@dataclass(frozen=True, slots=True)
class Load:
    """Milliseconds until a page can be used, and the files that it has loaded."""

    usable_ms: float
    files: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--models", type=int, default=0, help="models besides the bundled ones")
    parser.add_argument("--requests", type=int, default=FEW, help="requests answered before")
    parser.add_argument("--page", action="append", help="name of a page; default: all")
    arguments = parser.parse_args(argv)
    pages = [page for page in PAGES if page.logged_in and page.name != "not-found"]
    with (
        chromium.opened() as browser,
        tempfile.TemporaryDirectory() as work,
        served(Path(work), arguments.models, arguments.requests) as (origin, home),
    ):
        for page in pages:
            if arguments.page and page.name not in arguments.page:
                continue
            loads = [load_twice(browser, origin, home, page) for _ in range(arguments.trials)]
            first, again = zip(*loads, strict=True)
            sys.stdout.write(
                f"{page.name:<12}first {middle(first)}   again {middle(again)}"
                f"   load {os.getloadavg()[0]:.1f}\n"
            )
            sys.stdout.flush()
    return 0


def middle(loads: Sequence[Load]) -> str:
    usable_ms = [load.usable_ms for load in loads]
    low, files = min(usable_ms), max(load.files for load in loads)
    return f"{median(usable_ms):4.0f} ms (least {low:.0f}, {files} files)"


@contextmanager
def served(work: Path, models: int, requests: int) -> Iterator[tuple[str, Path]]:
    """The address of a server, and its home folder, once it has answered `requests`."""
    home, folder = work / "home", work / "models"
    folder.mkdir(parents=True)
    link_models(folder, models)
    with serving(home, 0, TARGET, "--model-dir", str(folder)) as (_, link):
        parts = urlsplit(link)
        origin = f"{parts.scheme}://{parts.netloc}"
        with httpx.Client(base_url=origin, timeout=60) as client:

            def ask(number: int) -> None:
                body = {"model": TARGET, "prompt": f"Number {number}", "max_tokens": 1}
                client.post("/v1/completions", json=body).raise_for_status()

            with ThreadPoolExecutor(AT_A_TIME) as askers:
                list(askers.map(ask, range(requests)))
        yield origin, home


def load_twice(browser: Browser, origin: str, home: Path, listed: Listed) -> tuple[Load, Load]:
    context = browser.new_context(base_url=origin)
    try:
        log_in(context, origin, home)
        page = context.new_page()
        page.add_init_script(_NOTE_READY)
        first = load(page, listed)
        page.goto("about:blank")
        return first, load(page, listed)
    finally:
        context.close()


def load(page: Page, listed: Listed) -> Load:
    page.goto(listed.path)
    if listed.name == "chat":
        page.locator("omlx-chat[data-ready]").wait_for(state="attached")
    usable_ms, files = page.evaluate(_USABLE)
    return Load(usable_ms, files)


if __name__ == "__main__":
    raise SystemExit(main())
