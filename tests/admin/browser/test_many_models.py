"""A list of hundreds of models in a browser: search, filter, order; what does not fit on demand."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.admin.models import drafts
from omlx.admin.models.drafts import FIRST_DRAFTS
from omlx.admin.models.list_page import FIRST_ROWS
from omlx.errors import Reason
from omlx.models.catalog.compatibility import Tokenizer
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.site import Site, link_models, open_site
from tests.server.running import DRAFT, TARGET

MANY = 40
OWN = scan_places([Folder("bundled", BUNDLED)]).entries
ALL = MANY + len(OWN)
LONG_MS = 60_000


@pytest.fixture(scope="module")
def many(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with forty more models of one's own, which are the bundled draft's files."""
    folder = tmp_path_factory.mktemp("models")
    link_models(folder, MANY)
    registry = scan_places([Folder("bundled", BUNDLED), Folder("model-dir", folder)])
    home: Path = tmp_path_factory.mktemp("home")
    with open_site(browser, home, registry, default=None) as site:
        yield site


def shown(page: Page) -> list[str]:
    """The ids of the visible rows, in their order."""
    rows = page.locator(".model:visible")
    return [str(row.get_attribute("id")).removeprefix("model-") for row in rows.all()]


def test_models_are_searched_filtered_and_sorted(many: Site) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto("/admin/models")
        search, show = page.get_by_label("Search"), page.get_by_label("Show")
        count = page.locator("[data-shown]")
        expect(count).to_have_text(f"{ALL} of {ALL} models")
        search.fill("ORG-1 model-0")
        expect(count).to_have_text(f"3 of {ALL} models")
        assert shown(page) == ["org-1/model-01", "org-1/model-04", "org-1/model-07"]
        search.fill("")
        page.get_by_label("Source").select_option("bundled")
        page.get_by_label("Sort by").select_option("largest")
        largest = sorted(OWN, key=lambda entry: entry.size_bytes, reverse=True)
        assert shown(page) == [entry.id for entry in largest]
        page.get_by_label("Sort by").select_option("name")
        assert shown(page) == sorted(entry.id for entry in OWN)
        show.select_option("loaded")
        assert shown(page) == []


def test_a_row_stays_where_it_is_although_its_state_no_longer_matches(many: Site) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto("/admin/models")
        many.ask(model=TARGET)
        row = page.locator(f'[id="model-{TARGET}"]')
        expect(row).to_contain_text("in memory", timeout=LONG_MS)
        page.get_by_label("Show").select_option("loaded")
        assert shown(page) == [TARGET]
        expect(page.locator("[data-settling]")).to_have_count(0)
        page.get_by_role("button", name=f"Unload {TARGET}").click()
        expect(row).to_contain_text("not loaded", timeout=LONG_MS)
        assert shown(page) == [TARGET]
        page.get_by_label("Show").select_option("fits")
        assert len(shown(page)) == ALL


def test_the_page_has_every_model_and_its_part_completes_the_rows(many: Site) -> None:
    with many.visit(java_script_enabled=False) as visit:
        page = visit.page
        page.goto("/admin/models")
        expect(page.locator(".model")).to_have_count(ALL)
        expect(page.locator(".model-facts").locator("visible=true")).to_have_count(FIRST_ROWS)
        expect(page.locator(".model").last.get_by_role("link")).to_have_attribute(
            "href", re.compile("^/admin/models/.")
        )
    with many.visit() as visit:
        page = visit.page
        page.goto("/admin/models")
        last = page.locator(".model").last
        last.get_by_role("link").focus()
        expect(last.get_by_role("button", name="Load")).to_have_count(1)
        expect(last.get_by_role("link")).to_be_focused()
        expect(page.locator(".model-facts")).to_have_count(ALL)


def test_a_row_far_below_is_reached_by_keyboard_and_found(many: Site) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto("/admin/models")
        rows = page.locator(".model")
        expect(rows.last.get_by_role("button", name="Load")).to_have_count(1)
        rows.nth(ALL - 2).get_by_role("button").last.focus()
        page.keyboard.press("Tab")
        expect(rows.last.get_by_role("link")).to_be_focused()
        expect(rows.last).to_be_in_viewport()
        assert page.evaluate(f"find('{rows.last.get_by_role('link').inner_text()}')")


@pytest.mark.slow
def test_a_long_list_fits_and_is_accessible(many: Site, axe: str) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto("/admin/models")
        check_words(page, "en")
        check_fits(page)
        page.get_by_label("Search").fill("omlx-demo")
        check_keyboard(page)
        check_accessible(page, axe)


def test_drafts_that_do_not_fit_are_listed_on_demand(many: Site) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{DRAFT}")
        unfit = page.locator(".unfit")
        expect(unfit.locator("summary")).to_have_text(f"Incompatible models ({ALL - 1})")
        expect(unfit.locator("li")).to_have_count(0)
        unfit.locator("summary").click()
        expect(unfit.locator("li")).to_have_count(ALL - 1)
        expect(unfit.locator("li").filter(has_text=TARGET)).to_have_count(1)


def test_the_first_drafts_are_listed_and_all_on_demand(many: Site) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        for name, part in (("draft_model", "drafts"), ("drafts", "trial-drafts")):
            choices = page.locator(f".drafts [name={name}]")
            values = "(inputs) => inputs.map(({ value }) => value)"
            known = set(choices.evaluate_all(values))
            assert len(known) <= FIRST_DRAFTS + 1  # and none
            more = page.locator(f"#more-{part} a")
            more.focus()
            page.keyboard.press("Enter")
            expect(more).to_have_count(0)
            shown = choices.evaluate_all(values)
            assert len(shown) > MANY
            new = next(at for at, value in enumerate(shown) if value not in known)
            expect(choices.nth(new)).to_be_focused()


def test_a_draft_is_chosen_from_all_of_them(many: Site) -> None:
    with many.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        page.locator("#more-drafts a").click()
        expect(page.locator("#more-drafts")).to_have_count(0)
        last = page.locator(".drafts [name=draft_model]").last
        name = str(last.get_attribute("value"))
        last.check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").first).to_contain_text("Draft model")
        chosen = page.locator(".drafts [name=draft_model]:checked")
        expect(chosen).to_have_count(1)
        expect(chosen).to_have_value(name)
        assert Store(many.home).read().layer(TARGET).values["draft_model"] == name
        expect(page.locator("#more-drafts")).to_have_count(1)  # it is one of the first now


def test_a_draft_that_is_being_checked_is_known_without_a_reload(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = threading.Event()
    unfit = Reason("draft.unfit.vocabulary", {"draft": DRAFT})

    def compare(ours: Tokenizer, theirs: Tokenizer) -> Reason:
        checked.wait(LONG_MS / 1000)
        return unfit

    monkeypatch.setattr(drafts, "tokenizer_mismatch", compare)
    with open_site(browser, tmp_path, default=None) as site, site.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        picked = page.locator(f'[id="draft-{DRAFT}"]')
        tried = page.locator(f'[id="try-{DRAFT}"]')
        for choice in (picked, tried):
            expect(choice).to_contain_text("being checked")
        picked.get_by_role("radio").check()
        page.go_back()
        page.go_forward()
        checked.set()
        for choice in (picked, tried):
            expect(choice).to_have_count(0)
        expect(page.get_by_role("radio", name="No draft model")).to_be_checked()
        expect(page.locator(".unfit summary")).to_contain_text("Incompatible models")
