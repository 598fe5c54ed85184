"""The benchmark page in a real browser: run, stop, results, comparison, files, languages."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from omlx.measure import benchmark as benchmarks
from omlx.measure.results import Conditions, ResultStore, StoredResult
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_languages
from tests.admin.browser.chromium import DESKTOP
from tests.admin.browser.site import Site, open_site, settled
from tests.server.running import DRAFT, TARGET

PAGE = f"/admin/benchmark?model={TARGET.replace('/', '%2F')}"
WAIT_MS = 120_000
REFRESHED = """() => new Promise((resolve) =>
  document.addEventListener("omlx:refreshed", () => resolve(), { once: true }))"""
RATE = {"low": 20.0, "median": 21.5, "high": 23.0}
ROW = {"prefill": 310.0, "first_s": 3.3, "plain": RATE, "drafted": RATE, "acceptance": 0.5}
ROWS = [
    {"tokens": 1024, "streams": 1, "memory_bytes": 3 << 28, **ROW},
    {"tokens": 1024, "streams": 4, "memory_bytes": 3 << 28, **ROW}
    | {"prefill": None, "first_s": None},
]
LEFT = {
    "tokens": 4096,
    "streams": 4,
    "reason": {"code": "benchmark.memory", "params": {"need_gb": 9.0, "free_gb": 1.5}},
}
OLD = StoredResult(
    {"model": TARGET, "rows": ROWS, "left_out": [LEFT], "drafters": ["ngram"], "no_drafts": None},
    1_700_000_000.0,
    Conditions("another machine", {"omlx": "0.0.9"}),
)


def test_a_benchmark_from_the_button_to_the_file(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "ROUNDS", 1)
    monkeypatch.setattr(benchmarks, "ANSWER_TOKENS", 24)
    ResultStore(tmp_path).add_run(TARGET, OLD)
    newer = replace(OLD, at=OLD.at + 60)
    ResultStore(tmp_path).add_run(TARGET, newer)
    with open_site(browser, tmp_path, draft_model=DRAFT) as site, site.open(PAGE) as page:
        expect(page.get_by_role("heading", name=f"Results of {TARGET}")).to_be_visible()
        expect(page.get_by_text("9.0 GB; 1.5 GB are free")).to_be_visible()
        page.get_by_label("Longest prompt").select_option("1024")
        button = page.locator("#bench-do")
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_text("Stop", timeout=WAIT_MS)
        expect(button).to_be_focused()
        expect(page.get_by_text(f"Measuring {TARGET}")).to_be_visible()
        page.reload()  # another window, or this one later, sees it, too
        expect(page.locator("#bench-progress")).to_be_visible(timeout=WAIT_MS)
        page.locator("#bench-do").click()
        stopped = page.locator(".bench .hint").first
        expect(stopped).to_contain_text("The benchmark was stopped.", timeout=WAIT_MS)
        expect(page.locator("#bench-run option")).to_have_count(2)

        page.get_by_label("Longest prompt").select_option("1024")
        settled(page)
        button.click()
        expect(page.locator("#bench-run option")).to_have_count(3, timeout=WAIT_MS)
        expect(page.locator("#bench-with")).to_have_value(f"{newer.at:.3f}")  # another version's
        expect(page.get_by_text("before: 310").first).to_be_visible()
        page.locator("#bench-with").select_option("")
        expect(page.get_by_text("before: 310")).to_have_count(0)
        assert page.url.endswith("&with=")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download as Markdown").click()
        assert "| 1024 | 1 |" in Path(download.value.path()).read_text()
        page.goto(f"/admin/models/{TARGET}")
        expect(page.get_by_text("tokens/s prefill and")).to_be_visible()
        page.get_by_role("link", name="Open the benchmark").click()
        expect(page.locator("#bench-model")).to_have_value(TARGET)


@pytest.mark.slow
def test_the_page_is_readable_reachable_and_in_every_language(
    browser: Browser, tmp_path: Path
) -> None:
    store = ResultStore(tmp_path)
    store.add_run(TARGET, OLD)
    store.add_run(TARGET, replace(OLD, at=time.time(), conditions=Conditions("m", {"omlx": "0.1"})))
    with open_site(browser, tmp_path, default=None) as site, site.open(PAGE) as page:
        expect(page.get_by_text("before: 310").first).to_be_visible()
        assert "<" not in page.locator("main").inner_text()
        expect(page.locator("ul.bars").first).to_have_css("border-bottom-width", "0px")
        page.evaluate(REFRESHED)  # the first one replaces what the server has rendered
        expect(page.locator("tbody th:not([data-label])")).to_have_count(0)  # on a phone
        check_fits(page)
        page.set_viewport_size(DESKTOP)
        check_keyboard(page)
        check_languages(page, PAGE)
        check_accessible(page)


@pytest.mark.slow
def test_what_another_measurement_prevents_is_said(busy: Site) -> None:
    with busy.open(PAGE, "409") as page:
        expect(page.get_by_text(f"No benchmark of {TARGET} yet.")).to_be_visible()
        trial = f"/admin/api/models/{TARGET}/trial"
        begun = page.evaluate(
            """(path) => fetch(path, { method: "POST", body: '{"kinds": ["prose"], "tokens": 512}',
              headers: { "Content-Type": "application/json" } }).then(({ status }) => status)""",
            trial,
        )
        assert begun == 202
        page.locator("#bench-do").click()
        expect(page.locator("omlx-benchmark > [data-problem]")).to_contain_text(TARGET)
        page.evaluate("(path) => fetch(path, { method: 'POST' })", f"{trial}/cancel")
