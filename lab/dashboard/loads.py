"""Milliseconds until the dashboard can be used: `scripts/bench-dashboard [pages]`.

`startup` runs from the start of `omlx serve`'s process, without a model, to the first paint of the
dashboard in a browser that is open, login included. `pages` runs from the start of a navigation to
the end of DOMContentLoaded, when all behaviours are attached; on the chat page until its
conversation is shown. *First* is a new browser profile, *again* one that has visited the page, both
from a server on loopback that has answered requests. Medians, on the machine as it is.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import httpx
from playwright.sync_api import Browser, Page

from omlx.cli.main import run_process
from tests.admin.browser import chromium
from tests.admin.browser.pages import PAGES, Listed
from tests.admin.browser.process import origin_of, serving
from tests.admin.browser.site import link_models, log_in
from tests.server.running import TARGET

AT_A_TIME: Final = 8
FEW: Final = 4
"""Requests that the server has answered in any case."""

_PAINTED = """() => performance.getEntriesByName("first-contentful-paint").length > 0"""
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


class Load(NamedTuple):
    """Milliseconds until a page can be used, and the files that it has loaded."""

    usable_ms: float
    files: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m lab.dashboard.loads", description=__doc__)
    parser.add_argument("measured", choices=("startup", "pages"))
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--models", type=int, default=0, help="models besides the bundled ones")
    parser.add_argument("--requests", type=int, default=FEW, help="requests answered before")
    parser.add_argument("--page", action="append", help="name of a page; default: all")
    arguments = parser.parse_args(argv)
    measure = measure_startup if arguments.measured == "startup" else measure_pages
    with chromium.opened() as browser, tempfile.TemporaryDirectory() as work:
        for line in measure(browser, Path(work), arguments):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return 0


def measure_startup(browser: Browser, work: Path, arguments: Namespace) -> Iterator[str]:
    starts = []
    for number in range(arguments.trials):
        starts.append(started(browser, work / str(number)))
        yield "ready {:.2f} s, dashboard {:.2f} s".format(*starts[-1])
    ready, painted = (median(times) for times in zip(*starts, strict=True))
    yield f"median of {len(starts)}: ready {ready:.2f} s, dashboard {painted:.2f} s"


def started(browser: Browser, home: Path) -> tuple[float, float]:
    """Seconds since the start of a process until it is ready, and until it has been seen."""
    begun = time.monotonic()
    with serving(home, 0) as (_, link):
        ready = time.monotonic() - begun
        context = browser.new_context(base_url=origin_of(link))
        try:
            log_in(context, origin_of(link), home)
            page = context.new_page()
            page.goto("/admin")
            page.wait_for_function(_PAINTED)
            return ready, time.monotonic() - begun
        finally:
            context.close()


def measure_pages(browser: Browser, work: Path, arguments: Namespace) -> Iterator[str]:
    with served(work, arguments.models, arguments.requests) as (origin, home):
        for page in PAGES:
            chosen = not arguments.page or page.name in arguments.page
            if not chosen or not page.logged_in or page.name == "not-found":
                continue
            loads = [load_twice(browser, origin, home, page) for _ in range(arguments.trials)]
            first, again = zip(*loads, strict=True)
            yield (
                f"{page.name:<12}first {middle(first)}   again {middle(again)}"
                f"   load {os.getloadavg()[0]:.1f}"
            )


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
        with httpx.Client(base_url=origin_of(link), timeout=60) as client:

            def ask(number: int) -> None:
                body = {"model": TARGET, "prompt": f"Number {number}", "max_tokens": 1}
                client.post("/v1/completions", json=body).raise_for_status()

            with ThreadPoolExecutor(AT_A_TIME) as askers:
                list(askers.map(ask, range(requests)))
        yield origin_of(link), home


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
    return Load(*page.evaluate(_USABLE))


if __name__ == "__main__":
    run_process(main)
