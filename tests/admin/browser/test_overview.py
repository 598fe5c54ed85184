"""The first page in a real browser: first steps, live figures, charts."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from playwright.sync_api import Browser, expect

from omlx.catalog import data_dir, languages
from omlx.engine.thread import EngineThread
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.opening import LoadProgress
from tests.admin.browser.site import Site, open_site
from tests.lanes import few
from tests.server.running import PATIENCE_S, TARGET

needs_charts = pytest.mark.skipif(
    not (data_dir("static") / "vendor").exists(),
    reason="no chart library: `make assets` brings it, where npm is",
)


def test_the_first_visit_offers_to_load_a_model(fresh: Site) -> None:
    with fresh.open("/admin") as page:
        expect(page.get_by_role("heading", name="Welcome")).to_be_visible()
        expect(page.locator(".figures")).to_be_hidden()
        page.get_by_role("button", name="Load it now").click()
        expect(page.locator(".here")).to_contain_text(TARGET)
        expect(page.get_by_role("heading", name="Welcome")).to_be_hidden()
        expect(page.locator(".figures")).to_be_visible()
        assert fresh.running.pool.last_used is not None


def test_a_request_is_listed_while_it_runs_and_after_its_end(busy: Site) -> None:
    with busy.open("/admin") as page:
        plain = {"logit_bias": busy.running.endless(), "speculation": "off"}
        row = page.locator("section[aria-labelledby=requests] tbody tr")
        with busy.asking(max_tokens=3900, **plain):
            expect(row).to_have_count(1)
            expect(row).to_contain_text(TARGET)
        expect(row).to_have_count(0)
        busy.ask(max_tokens=43, **plain)
        newest = page.locator("section[aria-labelledby=answers] tbody tr").first
        expect(newest.locator("td").nth(5)).to_have_text("43")
        expect(newest).to_contain_text("turned off by the request")


class HeldLoad:
    """Holds the first load at its beginning, until `resume` is set."""

    def __init__(self) -> None:
        self.reading, self.resume = Event(), Event()
        self.engine: EngineThread | None = None

    def __call__(self, entry: ModelEntry, progress: LoadProgress) -> None:
        if self.reading.is_set() or self.engine is None:
            return
        self.reading.set()
        self.engine.call(lambda: self.resume.wait(PATIENCE_S))


def test_a_request_that_waits_for_its_model_is_shown_while_it_loads(
    browser: Browser, tmp_path: Path
) -> None:
    held = HeldLoad()
    with (
        open_site(browser, tmp_path, default=None, report=held) as site,
        ThreadPoolExecutor(1) as pool,
        site.open() as page,
    ):
        held.engine = site.running.engine
        page.goto("/admin")
        asked = pool.submit(site.ask, max_tokens=5)
        try:
            requests, here = (
                page.locator("section[aria-labelledby=requests]"),
                page.locator(".here"),
            )
            expect(requests).to_contain_text("loading model")
            expect(requests).to_contain_text("1 queued")
            expect(page.locator(".figures")).to_contain_text("1 queued")
            expect(page.locator(".figures")).to_be_visible()
            expect(here).to_contain_text("loading")
            expect(page.locator(".here .chip")).to_have_count(0)
            assert "ready" not in here.inner_text()
        finally:
            held.resume.set()
        asked.result()
        expect(page.locator(".here")).to_contain_text("in memory")
        expect(requests).not_to_contain_text("loading model")


def test_figures_tables_and_charts_agree_at_every_refresh(busy: Site) -> None:
    agrees = """async () => {
      const seen = [];
      for (let turn = 0; turn < 3; turn++) {
        await new Promise((resolve) =>
          document.addEventListener("omlx:refreshed", resolve, { once: true }));
        const rows = document.querySelectorAll("section[aria-labelledby=requests] tbody tr").length;
        const active = Number(document.querySelectorAll(".figure-value")[1].textContent);
        const queued = parseInt(document.querySelectorAll(".figure-note")[1].textContent, 10);
        seen.push(rows === active + queued);
      }
      return seen;
    }"""
    endless = {"logit_bias": busy.running.endless(), "max_tokens": 40}
    with busy.open("/admin") as page, ThreadPoolExecutor(2) as pool:
        done = Event()

        def ask() -> None:
            while not done.is_set():
                busy.ask(**endless)

        asking = [pool.submit(ask) for _ in range(2)]
        try:
            assert page.evaluate(agrees) == [True] * 3
        finally:
            done.set()
        for each in asking:
            each.result()


@needs_charts
def test_charts_are_drawn_and_described(busy: Site) -> None:
    busy.ask(max_tokens=60)  # the charts show the last ten minutes
    with busy.open("/admin") as page:
        chart = page.locator("omlx-chart[data-kind=answers]")
        expect(chart.locator("canvas")).to_be_visible()
        said = re.compile(r"last \d+ requests that used drafts; the newest: .*%")
        expect(chart).to_have_attribute("aria-label", said)
        rate = page.locator("omlx-chart[data-kind=rate]")
        expect(rate).to_have_attribute("aria-label", re.compile("at most"))
        rate.locator(".u-over").hover()
        reading = page.locator("section[aria-labelledby=chart-rate] .reading")
        expect(reading).to_have_text(re.compile(r"\d\d:\d\d:\d\d · [\d.]+ · [\d.]+"))


@pytest.mark.slow
def test_a_line_ends_where_no_request_was(busy: Site) -> None:
    columns = """async () => {
      const { answers } = await import("/admin/static/js/chart-kinds.js");
      const times = [10, 20, 440, 450];
      const ended = times.map((at) => ({ at, speedup: at === 20 ? null : 2, acceptance: 0.5 }));
      return answers.columns({ answers: ended }).map((column) =>
        column.map((value) => (value === undefined ? "joined" : value)));
    }"""
    with busy.open("/admin") as page:
        times, speedups, acceptances = page.evaluate(columns)
    assert times == [10, 20, 230, 440, 450]
    assert speedups == [2, "joined", None, 2, 2]
    assert acceptances == [0.5, 0.5, None, 0.5, 0.5]


@pytest.mark.slow
@needs_charts
def test_a_chart_takes_its_colours_from_the_theme(busy: Site) -> None:
    pixels = """(canvas) => {
      const { width, height } = canvas;
      const copy = Object.assign(document.createElement("canvas"), { width, height });
      // The canvas of the chart itself would make the browser log a warning.
      const ink = copy.getContext("2d", { willReadFrequently: true });
      ink.drawImage(canvas, 0, 0);
      const { data } = ink.getImageData(0, 0, width, height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] === 255) seen.add(data.slice(i, i + 3).join());
      return [...seen];
    }"""
    with busy.open("/admin", color_scheme="light") as page:
        canvas = page.locator("omlx-chart[data-kind=answers] canvas")
        canvas.wait_for()
        by_day = page.evaluate(
            f"() => ({pixels})(document.querySelector('omlx-chart[data-kind=answers] canvas'))"
        )
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            f"""(day) => {{
              const chart = document.querySelector("omlx-chart[data-kind=answers] canvas");
              const night = ({pixels})(chart);
              return night.length && night.every((colour) => !day.includes(colour));
            }}""",
            arg=by_day,
        )


def test_without_the_chart_library_pages_name_the_command(
    busy: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "static"
    shutil.copytree(data_dir("static"), bare, ignore=shutil.ignore_patterns("vendor"))
    monkeypatch.setattr("omlx.admin.overview.data_dir", lambda name: bare)
    with busy.open("/admin") as page:
        expect(page.locator("omlx-chart")).to_have_count(0)
        expect(page.locator("section[aria-labelledby=chart-rate]")).to_contain_text("make assets")
        expect(page.locator("section[aria-labelledby=chart-rate] table")).to_be_visible()


def test_a_lost_connection_is_shown_until_it_is_back(busy: Site) -> None:
    with busy.open("/admin", "ERR_INTERNET_DISCONNECTED|Failed to fetch") as page:
        notice = page.locator("[data-offline]")
        expect(notice).to_be_hidden()
        page.context.set_offline(True)
        expect(notice).to_be_visible()
        page.context.set_offline(False)
        expect(notice).to_be_hidden()


@pytest.mark.parametrize("language", few(languages(), "en"))
def test_the_latest_requests_fit_a_desktop_without_scrolling(busy: Site, language: str) -> None:
    assert busy.post(model="no/such").status_code == 404
    with busy.open("/admin", locale=language) as page:
        hidden = "({ scrollWidth, clientWidth }) => scrollWidth - clientWidth"
        assert page.locator("#answers-scroll").evaluate(hidden) <= 0
