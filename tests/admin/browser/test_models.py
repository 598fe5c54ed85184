"""The list of models in a browser: load, unload, pin; search, filter, order of hundreds; drafts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from omlx.admin.models import drafts
from omlx.admin.models.draft_picker import FIRST_DRAFTS
from omlx.admin.models.list_page import FIRST_ROWS
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.reference import Tokenizer
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import PHONE
from tests.admin.browser.site import Site, link_models, open_site, save, settled, stored
from tests.server.running import DRAFT, HYBRID, PATIENCE_S, TARGET

MODELS, MODEL = "/admin/models", f"/admin/models/{TARGET}"
MANY = 40
OWN = scan_places([Folder("bundled", BUNDLED)]).entries
ALL = MANY + len(OWN)


def test_a_model_is_loaded_pinned_and_unloaded(fresh: Site) -> None:
    with fresh.open(MODELS, viewport=PHONE) as page:

        def button(action: str) -> Locator:
            return page.get_by_role("button", name=f"{action} {HYBRID}", exact=True)

        def state() -> str:
            return str(httpx.get(f"{fresh.url}/v1/models/{HYBRID}").json()["state"])

        button("Load").click()
        expect(button("Unload")).to_be_visible()
        assert state() == "ready"
        button("Pin").click()
        expect(button("Unpin")).to_be_focused()
        assert stored(fresh, HYBRID) == {"pinned": True}
        settled(page)
        button("Unpin").click()
        expect(button("Pin")).to_be_visible()
        assert stored(fresh, HYBRID) == {}
        settled(page)
        button("Unload").click()
        expect(button("Load")).to_be_visible()
        assert state() == "unloaded"
        button("Pin").click()  # pinning a model loads it
        row = page.locator(f'[id="model-{HYBRID}"]')
        expect(row).to_contain_text("in memory")
        expect(row.get_by_role("button", name="Unpin")).to_be_focused()


@pytest.fixture(scope="module")
def many(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with forty more models of one's own, which are the bundled draft's files."""
    folder = tmp_path_factory.mktemp("models")
    link_models(folder, MANY)
    registry = scan_places([Folder("bundled", BUNDLED), Folder("model-dir", folder)])
    with open_site(browser, tmp_path_factory.mktemp("home"), registry, default=None) as site:
        yield site


def shown(page: Page) -> list[str]:
    """The ids of the visible rows, in their order."""
    rows = page.locator(".model:visible")
    return [str(row.get_attribute("id")).removeprefix("model-") for row in rows.all()]


def test_models_are_searched_filtered_and_sorted(many: Site) -> None:
    with many.open(MODELS) as page:
        search, sort = page.get_by_label("Search"), page.get_by_label("Sort by")
        count = page.locator("[data-shown]")
        expect(count).to_have_text(f"{ALL} of {ALL} models")
        search.fill("ORG-1 model-0")
        expect(count).to_have_text(f"3 of {ALL} models")
        assert shown(page) == ["org-1/model-01", "org-1/model-04", "org-1/model-07"]
        search.fill("")
        page.get_by_label("Source").select_option("bundled")
        sort.select_option("largest")
        largest = sorted(OWN, key=lambda entry: entry.size_bytes, reverse=True)
        assert shown(page) == [entry.id for entry in largest]
        sort.select_option("name")
        assert shown(page) == sorted(entry.id for entry in OWN)
        page.get_by_label("Show").select_option("loaded")
        assert shown(page) == []


@pytest.mark.slow
def test_a_row_stays_where_it_is_although_its_state_no_longer_matches(many: Site) -> None:
    with many.open(MODELS) as page:
        many.ask(model=TARGET)
        row, show = page.locator(f'[id="model-{TARGET}"]'), page.get_by_label("Show")
        expect(row).to_contain_text("in memory")
        show.select_option("loaded")
        assert shown(page) == [TARGET]
        settled(page)
        page.get_by_role("button", name=f"Unload {TARGET}").click()
        expect(row).to_contain_text("not loaded")
        assert shown(page) == [TARGET]
        show.select_option("fits")
        assert len(shown(page)) == ALL


@pytest.mark.slow
def test_the_page_has_every_model_and_its_part_completes_the_rows(many: Site) -> None:
    with many.open(MODELS, java_script_enabled=False) as page:
        expect(page.locator(".model")).to_have_count(ALL)
        expect(page.locator(".model-facts").locator("visible=true")).to_have_count(FIRST_ROWS)
        link = page.locator(".model").last.get_by_role("link")
        expect(link).to_have_attribute("href", re.compile("^/admin/models/."))
    with many.open(MODELS) as page:
        rows, last = page.locator(".model"), page.locator(".model").last
        last.get_by_role("link").focus()
        expect(last.get_by_role("button", name="Load")).to_have_count(1)
        expect(last.get_by_role("link")).to_be_focused()
        expect(page.locator(".model-facts")).to_have_count(ALL)
        # A row far below is reached by keyboard, and found.
        rows.nth(ALL - 2).get_by_role("button").last.focus()
        page.keyboard.press("Tab")
        expect(last.get_by_role("link")).to_be_focused()
        expect(last).to_be_in_viewport()
        assert page.evaluate(f"find('{last.get_by_role('link').inner_text()}')")


@pytest.mark.slow
def test_a_long_list_fits_and_is_accessible(many: Site) -> None:
    with many.open(MODELS) as page:
        check_words(page, "en")
        check_fits(page)
        page.get_by_label("Search").fill("omlx-demo")
        check_keyboard(page)
        check_accessible(page)


@pytest.mark.slow
def test_drafts_that_do_not_fit_are_listed_on_demand(many: Site) -> None:
    with many.open(f"/admin/models/{DRAFT}") as page:
        unfit = page.locator(".unfit")
        expect(unfit.locator("summary")).to_have_text(f"Incompatible models ({ALL - 1})")
        expect(unfit.locator("li")).to_have_count(0)
        unfit.locator("summary").click()
        expect(unfit.locator("li")).to_have_count(ALL - 1)
        expect(unfit.locator("li").filter(has_text=TARGET)).to_have_count(1)


@pytest.mark.slow
def test_the_first_drafts_are_listed_and_all_on_demand_and_chosen(many: Site) -> None:
    values = "(inputs) => inputs.map(({ value }) => value)"
    with many.open(MODEL) as page:
        for name, part in (("draft_model", "drafts"), ("drafts", "trial-drafts")):
            choices, more = page.locator(f".drafts [name={name}]"), page.locator(f"#more-{part} a")
            known = set(choices.evaluate_all(values))
            assert len(known) <= FIRST_DRAFTS + 1  # and none
            more.focus()
            page.keyboard.press("Enter")
            expect(more).to_have_count(0)
            every = choices.evaluate_all(values)
            assert len(every) > MANY
            new = next(at for at, value in enumerate(every) if value not in known)
            expect(choices.nth(new)).to_be_focused()
        last = page.locator(".drafts [name=draft_model]").last
        name = str(last.get_attribute("value"))
        last.check()
        save(page, "Draft model")
        chosen = page.locator(".drafts [name=draft_model]:checked")
        expect(chosen).to_have_count(1)
        expect(chosen).to_have_value(name)
        assert stored(many, TARGET)["draft_model"] == name
        expect(page.locator("#more-drafts")).to_have_count(1)  # it is one of the first now


@pytest.mark.slow
def test_a_draft_that_is_being_checked_keeps_its_place(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says in its place if it does not fit, and what was chosen before is chosen again."""
    checked = threading.Event()
    unfit = Reason("draft.unfit.probe")

    def compare(ours: Tokenizer, theirs: Tokenizer) -> Reason:
        checked.wait(PATIENCE_S)
        return unfit

    monkeypatch.setattr(drafts, "tokenizer_mismatch", compare)
    with open_site(browser, tmp_path, default=None) as site, site.open(MODEL) as page:
        picked, tried = (page.locator(f'[id="{part}-{DRAFT}"]') for part in ("draft", "try"))
        for choice in (picked, tried):
            expect(choice).to_contain_text("being checked")
        picked.get_by_role("radio").check()
        rows = page.locator(".drafts .choice").evaluate_all("(all) => all.map(({ id }) => id)")
        checked.set()
        for choice in (picked, tried):
            expect(choice).to_contain_text("split a test text differently")
            expect(choice.locator("input")).to_be_disabled()
        now = page.locator(".drafts .choice").evaluate_all("(all) => all.map(({ id }) => id)")
        assert now == rows
        expect(page.get_by_role("radio", name="No draft model")).to_be_checked()
        check_accessible(page)
        page.reload()
        expect(picked).to_have_count(0)
        expect(page.locator(".unfit summary")).to_contain_text("Incompatible models")
