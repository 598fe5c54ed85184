"""Screenshots of every page in both themes, desktop and phone: `make screenshots`, for docs.

The server has answered requests, and answers more while the screenshots are taken.
"""

from __future__ import annotations

import itertools
import os
import struct
import sys
import tempfile
import zlib
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from playwright.sync_api import Page, expect

from omlx.catalog import SOURCE
from omlx.cli.main import run_process
from omlx.models.catalog.discovery import BUNDLED, Folder, hub_root, scan_places
from omlx.models.catalog.reference import Reference
from omlx.models.catalog.registry import Registry
from omlx.models.hub.job import Job, JobRecord, folder_name, part_of
from omlx.models.pool.speculation import check_value
from omlx.settings.schema import Value
from omlx.settings.store import Store
from omlx.telemetry import log
from tests.admin.browser import chromium
from tests.admin.browser.chromium import DESKTOP, PHONE
from tests.admin.browser.pages import PAGES, Listed
from tests.admin.browser.site import Site, open_busy_site, open_site
from tests.server.running import TARGET

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
SCREENS: Final = {"desktop": DESKTOP, "phone": PHONE}
SCHEMES: Final = ("light", "dark")
LIMIT_BYTES: Final = 150_000
BEFORE: Final = 12
_MOST: Final = 500
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
LONG: Final = {"max_tokens": 160, "repetition_penalty": 1.3, "repetition_context": 60}
BUNDLED_MODELS: Final = Folder("bundled", BUNDLED)
OWN: Final = "notes/summaries"
"""A model beside the bundled ones, whose files it has."""
QUESTIONS: Final = ("Write a function that adds two numbers.", "Count to 20.")
"""For the chat page; the bundled model answers them well."""
PAUSED: Final = Reference("mlx-community/Qwen3-8B-4bit")
CHAT: Final = next(listed for listed in PAGES if listed.name == "chat")
DRAFTING: Final[Mapping[str, Value]] = {"speculation": "draft", "num_draft_tokens": 4}
"""Drafts even where plain decoding is faster, as it may be for so small a model."""
BENCHMARK_MS: Final = 600_000
WELCOME: Final = Listed("welcome", "/admin")


def main() -> int:
    parser = ArgumentParser(prog="python -m lab.dashboard.screenshots", description=__doc__)
    parser.add_argument("--only", metavar="PAGE", help="only this page")
    parser.add_argument("--language", default=SOURCE)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # for `omlx dashboard`
    )
    with chromium.opened() as browser, tempfile.TemporaryDirectory() as folder:
        if arguments.only in (None, WELCOME.name):
            with open_site(
                browser, Path(folder) / "fresh", scan_places([BUNDLED_MODELS]), default=None
            ) as site:
                take(site, WELCOME, arguments.language, arguments.out)
        pages = [listed for listed in PAGES if arguments.only in (None, listed.name)]
        registry = with_own(Path(folder) / "models")
        if CHAT in pages:
            home = Path(folder) / "chat"
            Store(home, check_value).patch(DRAFTING, TARGET)
            with open_busy_site(browser, home, registry) as site:
                take(site, CHAT, arguments.language, arguments.out)
        others = [listed for listed in pages if listed != CHAT]
        if others:
            with open_busy_site(browser, Path(folder) / "busy", registry) as site:
                take_all(site, others, arguments.language, arguments.out)
    return 0


def with_own(folder: Path) -> Registry:
    """Models as on a machine that is in use."""
    model = folder / OWN
    model.mkdir(parents=True)
    for file in (BUNDLED / TARGET).iterdir():
        (model / file.name).symlink_to(file)
    return scan_places([BUNDLED_MODELS, Folder("model-dir", folder)])


def take_all(site: Site, pages: Sequence[Listed], language: str, out: Path) -> None:
    """Take the benchmark first, while there are no other requests."""
    log.set_up(site.home)
    try:
        for listed in pages:
            if listed.name == "benchmark":
                take(site, listed, language, out)
        with at_work(site):
            for listed in pages:
                if listed.name != "benchmark":
                    take(site, listed, language, out)
    finally:
        log.tear_down()


def take(site: Site, listed: Listed, language: str, out: Path) -> None:
    for (screen, viewport), scheme in itertools.product(SCREENS.items(), SCHEMES):
        looks = {"viewport": viewport, "color_scheme": scheme, "locale": language}
        with site.open(listed.path, "404", logged_in=listed.logged_in, **looks) as page:
            most = 2  # windows
            if listed.name == "benchmark":
                measure(page)
            if listed.name == "download":
                half_download(site.home)
                page.goto(listed.path)
            if listed.name == "chat":
                converse(page)
                most = 1  # its panels and field stay in the window
            for chart in page.locator("omlx-chart:visible").all():
                chart.locator("canvas").wait_for()
            expect(page.locator(".unchecked")).to_have_count(0)
            picture = taken(page, viewport, most)
            file = out / f"{listed.name}-{screen}-{scheme}.png"
            file.write_bytes(picture)
            sys.stdout.write(f"{file.name} {len(picture) // 1000} KB\n")


def half_download(home: Path) -> None:
    """Leave a download that was paused: its record, and the part that has come."""
    blob, size = "0" * 64, 4_620_000_000
    part = hub_root({"HOME": str(home)}) / folder_name(PAUSED.repository) / "blobs"
    part.mkdir(parents=True, exist_ok=True)
    with part_of(part / blob).open("wb") as file:
        file.truncate(size * 3 // 8)  # without using the disk
    Job(home, PAUSED.repository).write(JobRecord(PAUSED, ((blob, size),)))


def measure(page: Page) -> None:
    """Run a short benchmark, unless there is a result."""
    if page.locator(".bar-figure").count():
        return
    page.locator("#bench-longest").select_option("1024")
    page.locator("#bench-do").click()
    page.locator(".bar-figure").first.wait_for(timeout=BENCHMARK_MS)
    page.locator("[data-settling]").wait_for(state="detached")


def converse(page: Page) -> None:
    """Fill the page with a conversation; the drafted tokens of the last answer are highlighted."""
    page.locator("omlx-chat[data-ready]").wait_for()
    for number, question in enumerate(QUESTIONS, 1):
        page.locator("[name=question]").fill(question)
        page.keyboard.press("Enter")
        page.locator('.answer[data-status="done"]').nth(number - 1).wait_for()
    tint = page.locator('[data-action="tint"]:visible')
    if tint.count():
        tint.last.click()


def taken(page: Page, viewport: Mapping[str, int], most: int) -> bytes:
    """Return the page to its end, `most` windows high at most, and `LIMIT_BYTES` large."""
    if most == 1:
        return packed(page.screenshot(animations="disabled"))
    end = page.evaluate("document.scrollingElement.scrollHeight")
    height = min(end, most * viewport["height"])
    while True:
        # Rows below a window are not drawn.
        page.set_viewport_size({"width": viewport["width"], "height": height})
        picture = packed(page.screenshot(animations="disabled"))
        if len(picture) <= LIMIT_BYTES or height <= viewport["height"]:
            return picture
        height = max(viewport["height"], int(0.8 * height))


def packed(png: bytes) -> bytes:
    """Return the same image with the best compression, which the browser does not use."""
    chunks, data, at = [], b"", len(_SIGNATURE)
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        body, at = png[at + 8 : at + 8 + length], at + 12 + length
        if kind == b"IDAT":
            data += body
        else:
            chunks.append((kind, body))
    chunks.insert(-1, (b"IDAT", zlib.compress(zlib.decompress(data), 9)))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@contextmanager
def at_work(site: Site) -> Iterator[None]:
    """Answer one request after the other before and while the block runs."""
    enough = Event()

    def ask_one(number: int) -> None:
        site.ask("Write about a river.", seed=number, **LONG, logit_bias=site.running.endless())

    def ask() -> None:
        for number in range(BEFORE, _MOST):
            if enough.is_set():
                break
            ask_one(number)

    for number in range(BEFORE):
        ask_one(number)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(ask)
        try:
            yield
        finally:
            enough.set()
            working.result()


if __name__ == "__main__":
    run_process(main)
