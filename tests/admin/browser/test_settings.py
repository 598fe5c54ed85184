"""Forms of settings in a browser: refusals, concurrent changes, stored values, mapping rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from omlx.catalog import catalog, languages
from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits
from tests.admin.browser.site import SCRIPT, Site, open_site, save, stored
from tests.lanes import few
from tests.server.running import DRAFT, HYBRID, TARGET

SETTINGS = "/admin/settings"
CLAUDE, GPT = f"claude-*={TARGET}", f"gpt-*={DRAFT}"


def field_of(page: Page, name: str) -> Locator:
    return page.locator(f'[data-field="{name}"]').first


def problem_of(page: Page, name: str) -> Locator:
    return field_of(page, name).locator("[data-problem]")


def warning_of(place: Locator) -> Locator:
    return place.locator("[data-warning]")


def rows_of(page: Page) -> Locator:
    return page.locator('[data-field="model_map"] .map-row')


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()


def test_a_refused_change_shows_its_reason_and_keeps_the_input(fresh: Site) -> None:
    with fresh.open(SETTINGS, "400") as page:
        longest, problem = page.get_by_label("Max draft tokens"), problem_of(page, "draft_max")
        longest.fill("100")
        page.get_by_label("Queue limit").fill("64")
        press(page, "Save")
        expect(problem).to_have_text("'100' is not allowed. Enter a whole number from 1 to 64.")
        expect(longest).to_be_focused()
        expect(longest).to_have_value("100")
        expect(longest).to_have_attribute("aria-invalid", "true")
        assert stored(fresh) == {}
        longest.fill("10")
        page.keyboard.press("Enter")
        said = page.locator("[data-saved]")
        expect(said).to_contain_text("Saved and in effect: Max draft tokens")
        expect(problem).to_be_hidden()
        assert stored(fresh) == {"draft_max": 10, "max_waiting": 64}
        Store(fresh.home).patch({"draft_max": None, "max_waiting": None})
        page.reload()
        for name, label, value in (
            ("allow_origin", "Accepted origins", "not a url"),
            ("allow_host", "Accepted host names", "http://mac.local"),
            ("api_key", "API key", "kü key"),
        ):
            page.get_by_label(label).fill(value)
            press(page, "Save")
            expect(problem_of(page, name)).to_be_visible()
            press(page, "Discard")
        assert stored(fresh) == {}
    with fresh.open(SETTINGS, "400", locale="ko-KR") as page:
        page.locator("#field-draft_min").fill("9")
        page.locator("#field-draft_max").fill("5")
        page.keyboard.press("Enter")
        problem = problem_of(page, "draft_min")  # the two contradict each other
        expect(problem).to_contain_text("최소 초안 토큰 수 값(9)")
        expect(problem).not_to_contain_text("draft_")


def test_two_windows_do_not_overwrite_each_other(fresh: Site) -> None:
    with fresh.open(SETTINGS) as first, fresh.open(SETTINGS, "412") as page:
        first.get_by_label("Top-k").fill("40")
        save(first, "Top-k")
        page.get_by_label("Top-p").fill("0.9")
        press(page, "Save")
        expect(page.get_by_role("alert")).to_contain_text("changed in another window")
        expect(page.get_by_label("Top-p")).to_have_value("0.9")
        assert stored(fresh) == {"top_k": 40}
        page.on("dialog", lambda dialog: dialog.accept())
        press(page, "Reload the page")
        expect(page.get_by_label("Top-k")).to_have_value("40")


@pytest.mark.slow
def test_the_two_forms_of_a_model_do_not_outdate_each_other(fresh: Site) -> None:
    with fresh.open(f"/admin/models/{TARGET}", "400") as page:
        temperature = page.get_by_label("Temperature")
        page.get_by_label("Strategy").select_option("ngram")
        save(page, "Strategy")
        page.get_by_text("All other settings of this model").click()
        temperature.fill("0.5")
        save(page, "Temperature")
        expect(temperature).to_have_value("0.5")
        assert stored(fresh, TARGET) == {"speculation": "ngram", "temperature": 0.5}
        temperature.fill("")
        save(page, "Temperature")
        assert stored(fresh, TARGET) == {"speculation": "ngram"}
        # Its code is trusted only with a confirmation.
        page.get_by_label("Trust model code", exact=True).select_option("true")
        press(page, "Save")
        expect(problem_of(page, "trust_remote_code")).to_contain_text("Confirm")
        page.get_by_label("I have read this model's code").check()
        save(page, "Trust model code")
        assert stored(fresh, TARGET) == {"speculation": "ngram", "trust_remote_code": True}
        page.get_by_label("Context length").fill("99999999")
        press(page, "Save")
        context = warning_of(field_of(page, "max_context"))
        expect(context).to_contain_text("context length is 4096 tokens")


def test_every_kind_of_field_is_sent_with_its_type(fresh: Site) -> None:
    looks = """(input) => [getComputedStyle(input), getComputedStyle(input, "::placeholder")]
      .map(({ color, fontStyle }) => [color, fontStyle])"""
    with fresh.open(SETTINGS) as page:
        for label, default in (
            ("Port", "Default (8000)"),
            ("Temperature", "Default (from the model)"),
            ("Top-k", "Default (from the model)"),
            ("Max output tokens", "Default"),
        ):
            field = page.get_by_label(label, exact=True)
            expect(field).to_have_attribute("placeholder", default)
        typed, default = page.get_by_label("Port", exact=True).evaluate(looks)
        assert (typed[1], default[1]) == ("normal", "italic")
        assert typed[0] != default[0]

        page.get_by_label("Memory limit").fill("2GB")
        page.get_by_label("Accepted host names").fill("one.example\n\n two.example ")
        page.get_by_label("LM Studio").select_option("false")
        page.get_by_label("Log level").select_option("debug")
        page.get_by_label("Template variables").fill('{"enable_thinking": false}')
        page.get_by_label("API key").fill("a-key-of-mine")
        save(page, "when the server restarts")
        assert stored(fresh) == {
            "memory_limit": 2 << 30,
            "allow_host": ("one.example", "two.example"),
            "lmstudio": False,
            "log_level": "debug",
            "chat_template_kwargs": {"enable_thinking": False},
            "api_key": "a-key-of-mine",
        }
        assert "a-key-of-mine" not in page.content()
        page.get_by_label("Remove").check()
        save(page, "API key")
        assert "api_key" not in stored(fresh)


def test_input_before_the_script_has_loaded_is_a_change(fresh: Site) -> None:
    Store(fresh.home).patch({"model_map": (CLAUDE,)})
    with fresh.open() as page:
        held: list[Route] = []
        page.route(SCRIPT, lambda route: held.append(route))
        with page.expect_request(SCRIPT):
            page.goto(SETTINGS, wait_until="commit")
        page.get_by_label("Max draft tokens").fill("9")
        rows_of(page).get_by_label("Model on this machine").fill(DRAFT)
        for name in ("Save", "Add a name"):
            expect(page.get_by_role("button", name=name)).to_be_hidden()
        held[0].continue_()
        save(page, "Max draft tokens")
        expect(page.locator("[data-saved]")).to_contain_text("Model name mapping")
        assert stored(fresh)["model_map"] == (f"claude-*={DRAFT}",)


def test_values_that_flags_override_are_shown_and_locked(browser: Browser, tmp_path: Path) -> None:
    Store(tmp_path).patch({"api_key": "stored-key"})
    Store(tmp_path).patch({"draft_model": HYBRID}, TARGET)
    flags = {"draft_max": 5, "model_map": (CLAUDE,), "draft_model": DRAFT, "api_key": "of-the-flag"}
    with open_site(browser, tmp_path, default=None, **flags) as site, site.open(SETTINGS) as page:
        longest, key, names = (
            field_of(page, name) for name in ("draft_max", "api_key", "model_map")
        )
        expect(longest).to_contain_text("Set by --draft-max for this run.")
        expect(longest.locator("input[type=text]")).to_be_disabled()
        expect(longest.locator("input[type=text]")).to_have_value("5")
        expect(longest.get_by_label("Remove the stored value")).to_have_count(0)
        expect(names).to_contain_text("Set by --model-map for this run.")
        expect(names.get_by_label("Model on this machine")).to_have_value(TARGET)
        expect(names.get_by_label("Model on this machine")).to_be_disabled()
        expect(names.get_by_role("button")).to_have_count(0)
        expect(key).to_contain_text("Set by --api-key for this run.")
        expect(key.locator("input[type=password]")).to_be_disabled()
        assert "stored-key" not in page.content()
        assert "of-the-flag" not in page.content()
        Store(site.home).patch({"draft_max": 9})
        page.reload()
        longest.get_by_label("Remove the stored value: 9").check()
        key.get_by_label("Remove the stored value", exact=True).check()
        save(page, "Max draft tokens")
        expect(page.locator("[data-saved]")).to_contain_text("API key")
        expect(longest.get_by_label("Remove the stored value: 9")).to_have_count(0)
        assert stored(site) == {}

        page.goto(f"/admin/models/{TARGET}")
        picker = field_of(page, "draft_model")
        expect(picker).to_contain_text("Set by --draft-model for this run.")
        expect(picker.get_by_role("radio", checked=True)).to_have_value(DRAFT)
        expect(picker.get_by_role("radio").first).to_be_disabled()
        picker.get_by_label(f"Remove the stored value: {HYBRID}").check()
        save(page, "Draft model")
        assert stored(site, TARGET) == {}
        page.goto(f"/admin/models/{DRAFT}")  # the flag is about other models
        expect(page.locator(".effect")).not_to_contain_text(DRAFT)
        for wait in (".chip-wait", ".hint-wait"):
            expect(page.locator(wait)).to_have_count(0)


def test_what_was_saved_is_said_in_view_and_the_focus_stays(fresh: Site) -> None:
    with fresh.open(SETTINGS) as page:
        hosts, button = page.get_by_label("Accepted host names"), page.locator("#save-all")
        said = page.locator("[data-saved]")
        hosts.fill("mac.local")
        save(page, "Accepted host names")
        expect(said).to_be_in_viewport()
        expect(hosts).to_be_in_viewport()
        expect(button).to_be_focused()
        longest = page.get_by_label("Max draft tokens")
        longest.fill("10")
        page.keyboard.press("Enter")
        expect(said).to_contain_text("Max draft tokens")
        expect(said).to_be_in_viewport()
        expect(longest).to_be_focused()
        page.get_by_label("Queue limit").fill("7")
        button.focus()
        page.keyboard.press("Space")
        expect(said).to_contain_text("Queue limit")
        expect(button).to_be_focused()
        page.goto("/admin")  # nothing is left to save: no question


def test_names_of_what_is_missing_are_saved_with_a_warning_at_the_field(fresh: Site) -> None:
    Store(fresh.home).patch({"model_map": (CLAUDE, "gpt-*=nope", f"claude-*haiku*={DRAFT}")})
    missing = "No model on this machine has the name 'nope'."
    with fresh.open(SETTINGS) as page:
        rows = rows_of(page)
        expect(warning_of(rows.nth(0))).to_have_count(0)
        expect(warning_of(rows.nth(1))).to_have_text(missing)
        expect(warning_of(rows.nth(2))).to_contain_text("the row 'claude-*' above")
        expect(rows.nth(1).locator("[data-target]")).to_have_accessible_description(missing)
        press(page, "Move row 2 up")
        save(page, "Please check: Model name mapping.")
        expect(warning_of(rows.nth(0))).to_have_text(missing)
        expect(warning_of(rows.nth(1))).to_have_count(0)
        default = page.get_by_label("Default model")
        expect(default.locator("option")).to_have_text(["None", TARGET, DRAFT, HYBRID])
        page.get_by_label("Model folders").fill("/does/not/exist")
        press(page, "Add a name")
        page.get_by_label("Model name in requests").last.fill("o-*")
        page.get_by_label("Model on this machine").last.fill("gone")
        save(page, "Please check: Model folders, Model name mapping.")
        folder = warning_of(field_of(page, "model_dir"))
        expect(folder).to_have_text("The folder /does/not/exist does not exist.")
        expect(warning_of(rows.last)).to_have_text(missing.replace("nope", "gone"))


@pytest.mark.slow
def test_the_controls_of_a_row_of_fields_are_in_line(busy: Site) -> None:
    tops = """(fields) => [...fields.children].map((field) => {
      const control = field.querySelector(".input, .select");
      return [field.getBoundingClientRect().top, control.getBoundingClientRect().top];
    })"""
    with busy.open(SETTINGS) as page:
        for fields in page.locator(".fields").all():
            rows: dict[float, set[float]] = {}
            for row, control in fields.evaluate(tops):
                rows.setdefault(row, set()).add(control)
            assert [row for row, controls in rows.items() if len(controls) > 1] == []


@pytest.mark.slow
def test_rows_of_the_name_mapping_are_added_moved_and_removed(fresh: Site) -> None:
    with fresh.open(SETTINGS) as page:
        rows, saved = rows_of(page), "Model name mapping"
        options = page.locator("datalist#models-model_map option")
        values = options.evaluate_all("all => all.map(({ value }) => value)")
        assert values == [TARGET, DRAFT, HYBRID]
        press(page, "Add a name")
        expect(rows.nth(0).get_by_label("Model name in requests")).to_be_focused()
        page.keyboard.type("claude-*")
        page.keyboard.press("Tab")
        page.keyboard.type(TARGET)
        page.get_by_role("button", name="Add a name").focus()
        page.keyboard.press("Enter")
        page.keyboard.type(" gpt-4o ")
        page.keyboard.press("Tab")
        page.keyboard.type("draft")
        press(page, "Add a name")  # an empty row is not sent
        save(page, f"Saved and in effect: {saved}")
        assert stored(fresh)["model_map"] == (CLAUDE, "gpt-4o=draft")
        expect(rows).to_have_count(2)
        assert fresh.ask(model="gpt-4o")["model"] == DRAFT

        press(page, "Move row 2 up")
        expect(rows.nth(0).get_by_label("Model on this machine")).to_have_value("draft")
        expect(page.get_by_role("button", name="Move row 1 up")).to_be_disabled()
        save(page, saved)
        assert stored(fresh)["model_map"] == ("gpt-4o=draft", CLAUDE)

        page.get_by_role("button", name="Remove row 1").focus()
        page.keyboard.press("Enter")
        expect(rows.get_by_label("Model name in requests")).to_be_focused()
        press(page, "Remove row 1")
        expect(page.get_by_role("button", name="Add a name")).to_be_focused()
        save(page, saved)
        assert "model_map" not in stored(fresh)
        page.goto("/admin")  # nothing is left to save: no question


def test_discard_brings_removed_rows_back(fresh: Site) -> None:
    Store(fresh.home).patch({"model_map": (CLAUDE, GPT)})
    with fresh.open(SETTINGS) as page:
        names = rows_of(page).get_by_label("Model name in requests")
        expect(page.get_by_role("button", name="Save")).to_be_hidden()
        press(page, "Remove row 1")
        names.nth(0).fill("other")
        press(page, "Add a name")
        press(page, "Discard")
        expect(names).to_have_count(2)
        expect(names.nth(0)).to_have_value("claude-*")
        expect(names.nth(1)).to_have_value("gpt-*")
        expect(page.get_by_role("button", name="Save")).to_be_hidden()


@pytest.mark.parametrize("language", few(languages(), "ja"))
def test_an_incomplete_row_is_refused_at_the_row(fresh: Site, language: str) -> None:
    Store(fresh.home).patch({"model_map": (CLAUDE, GPT)})
    with fresh.open(SETTINGS, locale=language) as page:
        row = rows_of(page).nth(1)
        problem = row.locator("[data-problem]")
        pattern, target = row.locator("[data-pattern]"), row.locator("[data-target]")
        for field, value, code in (
            (pattern, "", "ui.map.no_pattern"),
            (pattern, "a=b", "ui.map.equals"),
            (target, " ", "ui.map.no_target"),
        ):
            before = field.input_value()
            field.fill(value)
            page.locator("#save-all").click()
            expect(problem).to_have_text(catalog(language)[code])
            expect(field).to_be_focused()
            expect(field).to_have_attribute("aria-invalid", "true")
            expect(field).to_have_accessible_description(catalog(language)[code])
            field.fill(before)
        assert stored(fresh)["model_map"] == (CLAUDE, GPT)
        expect(problem).to_be_hidden()  # nothing is changed any more


@pytest.mark.slow
def test_long_rows_and_their_messages_fit_and_are_accessible(fresh: Site) -> None:
    long = f"{'long-' * 20}*={'missing/' + 'name-' * 20}"
    Store(fresh.home).patch({"model_map": (CLAUDE, long)})
    with fresh.open(SETTINGS) as page:
        press(page, "Add a name")
        page.keyboard.type("x")
        press(page, "Save")
        expect(rows_of(page).nth(2).locator("[data-problem]")).to_be_visible()
        check_fits(page)
        check_accessible(page)
