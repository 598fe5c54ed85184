"""Forms of settings in a browser: refusals, concurrent changes, stored values."""

from __future__ import annotations

from playwright.sync_api import Route, expect

from omlx.settings.store import Store
from tests.admin.browser.site import SCRIPT, Site, open_site
from tests.server.running import DRAFT, HYBRID, TARGET


def test_a_refused_change_shows_its_reason_and_keeps_the_input(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        visit.complaints.expect("400")
        page.goto("/admin/settings")
        page.get_by_label("Max draft tokens").fill("100")
        page.get_by_label("Queue limit").fill("64")
        page.get_by_role("button", name="Save").click()
        problem = page.locator('[data-field="draft_max"] [data-problem]')
        expect(problem).to_have_text("'100' is not allowed. Enter a whole number from 1 to 64.")
        expect(page.get_by_label("Max draft tokens")).to_be_focused()
        expect(page.get_by_label("Max draft tokens")).to_have_value("100")
        expect(page.get_by_label("Max draft tokens")).to_have_attribute("aria-invalid", "true")
        assert Store(fresh.home).read().layer().values == {}

        page.get_by_label("Max draft tokens").fill("10")
        page.keyboard.press("Enter")
        expect(page.locator("[data-saved]")).to_contain_text(
            "Saved and in effect: Max draft tokens"
        )
        expect(problem).to_be_hidden()
        assert Store(fresh.home).read().layer().values == {"draft_max": 10, "max_waiting": 64}


def test_settings_that_contradict_each_other_are_named_at_a_field(fresh: Site) -> None:
    with fresh.visit(locale="ko-KR") as visit:
        page = visit.page
        visit.complaints.expect("400")
        page.goto("/admin/settings")
        page.locator("#field-draft_min").fill("9")
        page.locator("#field-draft_max").fill("5")
        page.keyboard.press("Enter")
        problem = page.locator('[data-field="draft_min"] [data-problem]')
        expect(problem).to_contain_text("최소 초안 토큰 수 값(9)")
        expect(problem).not_to_contain_text("draft_")


def test_two_windows_do_not_overwrite_each_other(fresh: Site) -> None:
    with fresh.visit() as first, fresh.visit() as second:
        second.complaints.expect("412")
        for visit in (first, second):
            visit.page.goto("/admin/settings")
        first.page.get_by_label("Top-k").fill("40")
        first.page.get_by_role("button", name="Save").click()
        expect(first.page.locator("[data-saved]")).to_contain_text("Top-k")
        page = second.page
        page.get_by_label("Top-p").fill("0.9")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("changed in another window")
        expect(page.get_by_label("Top-p")).to_have_value("0.9")
        assert Store(fresh.home).read().layer().values == {"top_k": 40}
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Reload the page").click()
        expect(page.get_by_label("Top-k")).to_have_value("40")


def test_the_two_forms_of_a_model_do_not_outdate_each_other(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        page.get_by_label("Strategy").select_option("ngram")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").first).to_contain_text("Strategy")
        page.get_by_text("All other settings of this model").click()
        page.get_by_label("Temperature").fill("0.5")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").last).to_contain_text("Temperature")
        expect(page.get_by_label("Temperature")).to_have_value("0.5")
        assert Store(fresh.home).read().layer(TARGET).values == {
            "speculation": "ngram",
            "temperature": 0.5,
        }
        page.get_by_label("Temperature").fill("")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").last).to_contain_text("Temperature")
        assert Store(fresh.home).read().layer(TARGET).values == {"speculation": "ngram"}


def test_every_kind_of_field_is_sent_with_its_type(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        page.get_by_label("Memory limit").fill("2GB")
        page.get_by_label("Accepted host names").fill("one.example\n\n two.example ")
        page.get_by_label("LM Studio").select_option("false")
        page.get_by_label("Log level").select_option("debug")
        page.get_by_label("Template variables").fill('{"enable_thinking": false}')
        page.get_by_label("API key").fill("a-key-of-mine")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]")).to_contain_text("when the server restarts")
        assert Store(fresh.home).read().layer().values == {
            "memory_limit": 2 << 30,
            "allow_host": ("one.example", "two.example"),
            "lmstudio": False,
            "log_level": "debug",
            "chat_template_kwargs": {"enable_thinking": False},
            "api_key": "a-key-of-mine",
        }
        assert "a-key-of-mine" not in page.content()
        page.get_by_label("Remove").check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]")).to_contain_text("API key")
        assert "api_key" not in Store(fresh.home).read().layer().values


def test_the_code_of_a_model_is_trusted_only_with_a_confirmation(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        visit.complaints.expect("400")
        page.goto(f"/admin/models/{TARGET}")
        page.get_by_text("All other settings of this model").click()
        page.get_by_label("Trust model code", exact=True).select_option("true")
        page.get_by_role("button", name="Save").click()
        expect(page.locator('[data-field="trust_remote_code"] [data-problem]')).to_contain_text(
            "Confirm"
        )
        page.get_by_label("I have read this model's code").check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").last).to_contain_text("Trust model code")
        assert Store(fresh.home).read().layer(TARGET).values == {"trust_remote_code": True}


def test_input_before_the_script_has_loaded_is_a_change(fresh: Site) -> None:
    with fresh.visit() as visit:
        held: list[Route] = []
        visit.page.route(SCRIPT, lambda route: held.append(route))
        with visit.page.expect_request(SCRIPT):
            visit.page.goto("/admin/settings", wait_until="commit")
        visit.page.get_by_label("Max draft tokens").fill("9")
        expect(visit.page.get_by_role("button", name="Save")).to_be_hidden()
        held[0].continue_()
        visit.page.get_by_role("button", name="Save").click()
        expect(visit.page.locator("[data-saved]")).to_contain_text("Max draft tokens")


def test_a_flag_that_overrides_a_setting_is_shown(fresh: Site) -> None:
    with (
        open_site(fresh.browser, fresh.home / "other", default=None, draft_max=5) as site,
        site.visit() as visit,
    ):
        visit.page.goto("/admin/settings")
        field = visit.page.locator('[data-field="draft_max"]')
        expect(field).to_contain_text("Set by --draft-max for this run.")
        expect(field.locator("input[type=text]")).to_be_disabled()
        expect(field.locator("input[type=text]")).to_have_value("5")
        expect(field.get_by_label("Remove the stored value")).to_have_count(0)
        Store(site.home).patch({"draft_max": 9})
        visit.page.reload()
        field.get_by_label("Remove the stored value: 9").check()
        visit.page.get_by_role("button", name="Save").click()
        expect(visit.page.locator("[data-saved]")).to_contain_text("Max draft tokens")
        expect(field.get_by_label("Remove the stored value: 9")).to_have_count(0)
        assert Store(site.home).read().layer().values == {}


def test_a_draft_that_a_flag_sets_locks_the_picker_and_shows_what_is_stored(fresh: Site) -> None:
    home = fresh.home / "other"
    Store(home).patch({"draft_model": HYBRID}, TARGET)
    with (
        open_site(fresh.browser, home, default=None, draft_model=DRAFT) as site,
        site.visit() as visit,
    ):
        page = visit.page
        page.goto(f"/admin/models/{TARGET}")
        picker = page.locator('[data-field="draft_model"]').first
        expect(picker).to_contain_text("Set by --draft-model for this run.")
        expect(picker.get_by_role("radio", checked=True)).to_have_value(DRAFT)
        expect(picker.get_by_role("radio").first).to_be_disabled()
        picker.get_by_label(f"Remove the stored value: {HYBRID}").check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]").first).to_contain_text("Draft model")
        assert Store(home).read().layer(TARGET).values == {}
        page.goto(f"/admin/models/{DRAFT}")  # the flag is about other models
        expect(page.locator(".effect")).not_to_contain_text(DRAFT)
        expect(page.locator(".chip-wait")).to_have_count(0)
        expect(page.locator(".hint-wait")).to_have_count(0)


def test_a_key_that_a_flag_sets_is_named_by_its_flag_and_never_shown(fresh: Site) -> None:
    home = fresh.home / "other"
    Store(home).patch({"api_key": "stored-key"})
    with (
        open_site(fresh.browser, home, default=None, api_key="key-of-the-flag") as site,
        site.visit() as visit,
    ):
        page = visit.page
        page.goto("/admin/settings")
        field = page.locator('[data-field="api_key"]')
        expect(field).to_contain_text("Set by --api-key for this run.")
        expect(field.locator("input[type=password]")).to_be_disabled()
        assert "stored-key" not in page.content()
        assert "key-of-the-flag" not in page.content()
        field.get_by_label("Remove the stored value", exact=True).check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("[data-saved]")).to_contain_text("API key")
        assert Store(home).read().layer().values == {}


def test_a_default_is_named_in_its_field_and_does_not_look_typed(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        for label, placeholder in (
            ("Port", "Default (8000)"),
            ("Temperature", "Default (from the model)"),
            ("Top-k", "Default (from the model)"),
            ("Max output tokens", "Default"),
        ):
            expect(page.get_by_label(label, exact=True)).to_have_attribute(
                "placeholder", placeholder
            )
        looks = """(input) => [getComputedStyle(input), getComputedStyle(input, "::placeholder")]
          .map(({ color, fontStyle }) => [color, fontStyle])"""
        typed, default = page.get_by_label("Port", exact=True).evaluate(looks)
        assert (typed[1], default[1]) == ("normal", "italic")
        assert typed[0] != default[0]


def test_what_was_saved_is_said_in_view_and_the_focus_stays(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        field = page.get_by_label("Accepted host names")
        field.fill("mac.local")
        save = page.get_by_role("button", name="Save")
        save.click()
        said = page.locator("[data-saved]")
        expect(said).to_contain_text("Accepted host names")
        expect(said).to_be_in_viewport()
        expect(field).to_be_in_viewport()
        expect(save).to_be_focused()
        page.get_by_label("Max draft tokens").fill("10")
        page.keyboard.press("Enter")
        expect(said).to_contain_text("Max draft tokens")
        expect(said).to_be_in_viewport()
        expect(page.get_by_label("Max draft tokens")).to_be_focused()
        page.get_by_label("Queue limit").fill("7")
        save.focus()
        page.keyboard.press("Space")
        expect(said).to_contain_text("Queue limit")
        expect(save).to_be_focused()
        page.goto("/admin")  # nothing is left to save: no question


def test_names_of_what_is_missing_are_saved_with_a_warning_at_the_field(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        page.goto("/admin/settings")
        default = page.get_by_label("Default model")
        expect(default.locator("option")).to_have_text(["None", TARGET, DRAFT, HYBRID])
        page.get_by_label("Model folders").fill("/does/not/exist")
        page.get_by_role("button", name="Add a name").click()
        page.get_by_label("Model name in requests").fill("claude-*")
        page.get_by_label("Model on this machine").fill("nope")
        page.get_by_role("button", name="Save").click()
        said = page.locator("[data-saved]")
        expect(said).to_contain_text("Please check: Model folders, Model name mapping.")
        folder = page.locator('[data-field="model_dir"] [data-warning]')
        expect(folder).to_have_text("The folder /does/not/exist does not exist.")
        target = page.locator('[data-field="model_map"] [data-warning]')
        expect(target).to_have_text("No model on this machine has the name 'nope'.")
        page.goto(f"/admin/models/{TARGET}")
        page.get_by_text("All other settings of this model").click()
        page.get_by_label("Context length").fill("99999999")
        page.get_by_role("button", name="Save").click()
        context = page.locator('[data-field="max_context"] [data-warning]')
        expect(context).to_contain_text("context length is 4096 tokens")


def test_an_origin_and_a_host_name_that_no_browser_sends_are_refused(fresh: Site) -> None:
    with fresh.visit() as visit:
        page = visit.page
        visit.complaints.expect("400")
        page.goto("/admin/settings")
        for name, label, value in (
            ("allow_origin", "Accepted origins", "not a url"),
            ("allow_host", "Accepted host names", "http://mac.local"),
            ("api_key", "API key", "kü key"),
        ):
            page.get_by_label(label).fill(value)
            page.get_by_role("button", name="Save").click()
            expect(page.locator(f'[data-field="{name}"] [data-problem]')).to_be_visible()
            page.get_by_role("button", name="Discard").click()
        assert Store(fresh.home).read().layer().values == {}


def test_the_controls_of_a_row_of_fields_are_in_line(busy: Site) -> None:
    tops = """(fields) => [...fields.children].map((field) => {
      const control = field.querySelector(".input, .select");
      return [field.getBoundingClientRect().top, control.getBoundingClientRect().top];
    })"""
    with busy.visit() as visit:
        visit.page.goto("/admin/settings")
        for fields in visit.page.locator(".fields").all():
            rows: dict[float, set[float]] = {}
            for row, control in fields.evaluate(tops):
                rows.setdefault(row, set()).add(control)
            assert [row for row, controls in rows.items() if len(controls) > 1] == []
