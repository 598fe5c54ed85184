"""Conversations of a browser and of the server: drafts, names, folders, pins, titles, search."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from omlx.catalog import languages
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from tests.admin.browser.checks import check_accessible, check_fits, check_keyboard, check_words
from tests.admin.browser.chromium import DESKTOP, NARROW, PHONE
from tests.admin.browser.site import Site, open_site
from tests.admin.browser.test_chat import (
    COUNT,
    answers,
    ask,
    button,
    expect_answers,
    fill,
    held,
    needs_markdown,
    open_chat,
    talking,
)
from tests.server.running import TARGET

FILLED = """async ([conversations, turns]) => {
  const store = await import("/admin/static/js/chat/store.js");
  const words = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do ".repeat(8);
  for (let number = 0; number < conversations; number += 1) {
    const id = `c${number}`, messages = [];
    for (let turn = 0; turn < 2 * turns; turn += 1) {
      const role = turn % 2 ? "assistant" : "user";
      messages.push({ conversation: id, id: `${id}m${turn}`, role, created: turn,
        parent: turn ? `${id}m${turn - 1}` : null, text: `${words} turn ${turn} of ${number}.`,
        reasoning: "", drafted: [], status: "done", model: "m", images: [], attempt: 1 });
    }
    const settings = { model: "m", system: "", temperature: "", maxTokens: "", thinking: "",
      seed: "", schema: "" };
    const head = { id, title: `About ${number}`, created: number, updated: number,
      leaf: `${id}m${2 * turns - 1}`, settings };
    await store.addAll({ conversation: head, messages, images: [] });
  }
}"""
"""Stores conversations `c0`, … of so many turns, without the server."""


def question(page: Page) -> str:
    return page.locator("[name=question]").input_value()


@pytest.mark.slow
def test_what_is_typed_stays_with_its_conversation(chatting: Site) -> None:
    field = "[name=question]"
    with talking(chatting) as page:
        ask(page, COUNT)
        expect_answers(page, 1)
        page.locator(field).fill("half a question")
        page.reload()
        expect(page.locator(field)).to_have_value("half a question")
        page.keyboard.press("Control+k")
        expect(page.locator(field)).to_have_value("")
        page.locator(field).fill("something else")
        page.locator(".conversation a").click()
        expect(page.locator(field)).to_have_value("half a question")
        page.keyboard.press("Control+k")
        expect(page.locator(field)).to_have_value("something else")
        page.keyboard.press("Enter")
        expect_answers(page, 1)
        page.reload()
        expect_answers(page, 1)
        assert question(page) == ""
        button(page, "delete-all").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
        page.reload()
        page.locator("omlx-chat[data-ready]").wait_for()
        assert question(page) == ""


@pytest.mark.slow
def test_the_meter_counts_what_is_typed(chatting: Site) -> None:
    with talking(chatting) as page:
        meter, warning = page.locator('[data-chat="meter"]'), page.locator('[data-chat="context"]')
        expect(page.locator("#chat-model")).to_contain_text(TARGET)
        page.locator("[name=question]").fill("word " * 1000)
        expect(meter).to_contain_text("≈")
        page.locator("[name=question]").fill("word " * 4500)
        expect(meter).to_have_class(re.compile("context-over"))
        expect(warning).to_contain_text("the model's context has 4 096")
        check_accessible(page, [DESKTOP])
        page.locator("[name=question]").fill("")
        expect(meter).to_be_hidden()
        expect(warning).to_be_hidden()
        ask(page, COUNT)
        expect_answers(page, 1)
        expect(meter).to_contain_text(re.compile(r"^\s*\d+ / 4.096 tokens"))


def test_a_question_that_is_sent_during_an_answer_waits_for_its_end(chatting: Site) -> None:
    waits = "[data-waits]"
    with talking(chatting) as page:
        with held(chatting, page) as go_on:
            fill(page, schema="")
            ask(page, "Hello")
            expect(page.locator(waits)).to_contain_text("Sent when the answer has ended")
            page.keyboard.type("!")  # takes it back
            expect(page.locator(waits)).to_be_hidden()
            page.keyboard.press("Enter")
            expect(page.locator(waits)).to_be_visible()
            go_on.set()
            expect(page.locator(".bubble")).to_have_text(["Write words.", "Hello!"])
        expect_answers(page, 2)
        expect(page.locator(waits)).to_be_hidden()
        assert question(page) == ""
        with held(chatting, page) as go_on:
            fill(page, schema="")
            ask(page, "Not now")
            expect(page.locator(waits)).to_be_visible()
            page.keyboard.press("Escape")
            go_on.set()
            expect_answers(page, 1, "stopped")
        expect(page.locator(waits)).to_be_hidden()
        assert question(page) == "Not now"


def organise(
    page: Page, name: str, *, title: str = "", folder: str = "", pin: bool = False
) -> None:
    page.get_by_role("button", name=f"Rename, pin or move “{name}”").click()
    dialog = page.get_by_role("dialog")
    if title:
        dialog.get_by_label("Title").fill(title)
    dialog.get_by_label("Folder").fill(folder)
    dialog.get_by_label("Pin to the top").set_checked(pin)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()


def test_conversations_are_renamed_pinned_and_put_into_folders(chatting: Site) -> None:
    with talking(chatting) as page:
        page.evaluate(FILLED, [4, 1])
        page.reload()
        titles = page.locator(".conversation [data-title]")
        expect(titles).to_have_text(["About 3", "About 2", "About 1", "About 0"])
        organise(page, "About 0", pin=True)
        expect(titles).to_have_text(["About 0", "About 3", "About 2", "About 1"])
        organise(page, "About 1", title="Rivers", folder="Geography")
        organise(page, "About 3", folder="Geography")
        expect(titles).to_have_text(["About 0", "About 3", "Rivers", "About 2"])
        folder = page.locator(".folder")
        expect(folder.locator("summary")).to_contain_text("Geography 2")
        folder.locator("summary").click()
        page.locator(".conversation a", has_text="About 2").click()
        expect(page.locator("h1")).to_have_text("About 2")
        page.reload()
        expect(titles).to_have_text(["About 0", "About 3", "Rivers", "About 2"])
        expect(folder).not_to_have_attribute("open", "")
        folder.locator("summary").click()
        other = page.context.new_page()
        open_chat(other)
        organise(other, "About 2", title="Lakes")
        expect(page.locator("h1")).to_have_text("Lakes")
        other.close()
        page.bring_to_front()  # frames of a page behind another are rare
        check_accessible(page, [DESKTOP])
        page.locator(".chat-menu summary").click()
        button(page.locator(".chat-menu"), "organise").click()
        expect(page.get_by_role("dialog").get_by_label("Title")).to_have_value("Lakes")
        check_accessible(page, [DESKTOP, PHONE])
        check_fits(page)
        page.keyboard.press("Escape")


def test_a_search_shows_its_hit_and_leads_to_it(chatting: Site) -> None:
    with talking(chatting) as page:
        page.evaluate(FILLED, [30, 12])
        page.reload()
        page.locator("omlx-chat[data-ready]").wait_for()
        page.get_by_role("searchbox").fill("TURN 9 of 17")
        hit = page.locator(".conversation")
        expect(hit).to_have_count(1)
        expect(hit.locator("mark")).to_have_text("turn 9 of 17")
        expect(page.locator("[data-found]")).to_have_text("Found: 1")
        hit.locator("a").click()
        expect(page.locator("h1")).to_have_text("About 17")
        expect(page.locator("#turn-c17m9")).to_be_in_viewport()
        page.get_by_role("searchbox").fill("turn 2 of 17")
        expect(hit.locator("mark")).to_have_text("turn 2 of 17")
        hit.locator("a").click()  # in the open conversation
        expect(page.locator("#turn-c17m2")).to_be_in_viewport()
        page.get_by_role("searchbox").fill("no such text")
        expect(hit).to_have_count(0)


@pytest.mark.slow
def test_choosing_a_conversation_on_a_phone_closes_the_list(chatting: Site) -> None:
    with talking(chatting, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        page.evaluate(FILLED, [2, 1])
        page.reload()
        page.locator("omlx-chat[data-ready]").wait_for()
        for title in ("About 1", "About 0", "About 0"):
            page.get_by_role("button", name="Conversations").tap()
            page.locator(".conversation a", has_text=title).tap()
            expect(page.locator("#chat-history")).to_be_hidden()
            expect(page.locator("h1")).to_have_text(title)
        page.locator(".header .menu-button").tap()
        pages = page.get_by_role("navigation", name="All pages")
        for name in ("Overview", "Connect", "Settings"):
            expect(pages.get_by_role("link", name=name)).to_be_in_viewport()


@pytest.mark.slow
def test_escape_closes_the_settings_and_keeps_the_answer(chatting: Site) -> None:
    with talking(chatting) as page:
        opener = page.get_by_role("button", name="Chat settings")
        with held(chatting, page) as go_on:
            opener.click()
            page.get_by_label("System prompt").focus()
            page.keyboard.press("Escape")
            expect(page.locator("#chat-settings")).to_be_hidden()
            expect(opener).to_be_focused()
            expect_answers(page, 1, "running")
            go_on.set()
            expect_answers(page, 1)
        opener.click()
        page.locator("[name=question]").focus()
        page.keyboard.press("Escape")
        expect(page.locator("#chat-settings")).to_be_hidden()


@pytest.mark.slow
def test_a_model_writes_the_title_unless_the_user_does(browser: Browser, tmp_path: Path) -> None:
    own = Registry((ModelEntry("org/target", BUNDLED / TARGET, "models"),))
    with (
        open_site(browser, tmp_path, own, default="org/target") as site,
        talking(site) as page,
        page.expect_request(lambda request: '"stream":false' in (request.post_data or "")) as sent,
    ):
        ask(page, COUNT)
        expect_answers(page, 1)
        body = sent.value.post_data_json
        assert body["store"] is body["background"] is False
        assert body["max_output_tokens"] <= 32
        assert body["priority"] == 10
        assert body["input"][-1]["content"].startswith("Write a title")
        answer = sent.value.response()
        assert answer is not None
        assert answer.ok
        title = page.locator("h1")
        if answer.json()["output"]:  # a toy may write none that can be used
            expect(title).not_to_have_text("New conversation")
        organise(page, title.inner_text(), title="Mine")
        expect(title).to_have_text("Mine")
        page.get_by_label("Titles by the model").uncheck()
        page.reload()
        expect(page.get_by_label("Titles by the model")).not_to_be_checked()
        expect(answers(page)).to_be_visible()


def test_a_full_store_is_named_and_nothing_is_lost_on_the_page(
    chatting: Site, tmp_path: Path
) -> None:
    with talking(chatting) as page:
        quota = page.context.new_cdp_session(page)
        quota.send("Storage.overrideQuotaForOrigin", {"origin": chatting.url, "quotaSize": 1})
        ask(page, COUNT)
        expect_answers(page, 1)
        expect(page.locator('[data-chat="unkept"]')).to_contain_text("storage is full")
        expect(page.locator(".bubble")).to_have_text(COUNT)
        refused = page.locator("[data-chat=import-problem]")
        for name, text, reason in (
            ("notes.md", "<!-- omlx:user -->\n## You\n\nHello", "storage is full"),
            ("other.json", '{"threads": []}', "no omlx-conversations"),
            ("book.pdf", "%PDF-1.4", "no message"),
        ):
            (tmp_path / name).write_text(text)
            page.locator("[data-chat=file]").set_input_files(tmp_path / name)
            expect(refused).to_contain_text(reason)
        with (tmp_path / "huge.json").open("wb") as huge:
            huge.truncate(1 << 30)  # a file with a hole takes no room
        page.locator("[data-chat=file]").set_input_files(tmp_path / "huge.json")
        expect(refused).to_contain_text("huge.json is larger than 256 MB")
        expect(page.locator(".conversation")).to_have_count(0)


@needs_markdown
@pytest.mark.slow
def test_a_page_with_everything_in_every_language(chatting: Site) -> None:
    with talking(chatting, "inline") as page:
        page.evaluate(FILLED, [3, 1])
        page.reload()
        page.locator("omlx-chat[data-ready]").wait_for()
        organise(page, "About 0", folder="Geography", pin=False)
        organise(page, "About 1", pin=True)
        fill(page, maxTokens="12", thinking="off")
        ask(page, COUNT)
        expect_answers(page, 1)
        button(page, "versus").click()
        page.get_by_role("dialog").get_by_role("button", name="Compare").click()
        expect_answers(page, 2)
        fill(page, maxTokens="")
        ask(page, "Hello")
        expect_answers(page, 3)
        page.locator("[name=question]").fill("word " * 9000)
        for language in languages():
            page.context.add_cookies(
                [{"name": "omlx_language", "value": language, "url": page.url}]
            )
            page.reload()
            page.locator("omlx-chat[data-ready]").wait_for()
            expect_answers(page, 3)
            for summary in page.locator(".answer-figures summary").all():
                summary.click()
            check_words(page, language)
            page.evaluate("document.querySelector('[data-confirm=organise]').showModal()")
            check_fits(page)
            page.keyboard.press("Escape")
            check_fits(page)
            page.set_viewport_size(DESKTOP)
        check_accessible(page, [DESKTOP, PHONE, NARROW])
        page.set_viewport_size(DESKTOP)
        page.locator("[name=question]").fill("")
        check_keyboard(page)


@pytest.fixture
def storing(browser: Browser, tmp_path: Path) -> Iterator[Site]:
    with open_site(browser, tmp_path, chat_store=True) as site:
        yield site


def exchange(page: Page) -> None:
    """Reload the page, which asks the server at once, and wait until it has answered."""
    with page.expect_response("**/chat/conversations"):
        page.reload()
    page.locator("omlx-chat[data-ready]").wait_for()


def test_another_browser_has_them_and_deletes_them(storing: Site) -> None:
    with talking(storing) as here, talking(storing) as there:
        expect(here.locator(".chat-welcome")).to_contain_text("in the home folder of the server")
        with here.expect_request(lambda request: request.method == "PUT"):
            ask(here, COUNT)
            expect_answers(here, 1)
        exchange(there)
        there.locator(".conversation a").click()
        expect(there.locator("h1")).to_have_text(COUNT)
        expect_answers(there, 1)
        with there.expect_request(lambda request: request.method == "PUT"):
            ask(there, "Hello")
            expect_answers(there, 2)
        with there.expect_request(lambda request: request.method == "PUT"):
            organise(there, COUNT, title="Numbers")
        exchange(here)
        expect(here.locator("h1")).to_have_text("Numbers")
        expect_answers(here, 2)
        button(there, "delete-all").click()
        dialog = there.get_by_role("dialog")
        expect(dialog).to_contain_text("from other browsers")
        with there.expect_request(lambda request: request.method == "DELETE"):
            dialog.get_by_role("button", name="Delete all").click()
        exchange(here)
        expect(here.locator(".conversation")).to_have_count(0)
        expect(answers(here)).to_have_count(0)


def test_what_could_not_be_sent_is_sent_later(storing: Site) -> None:
    with talking(storing, "ERR_") as page:
        page.route("**/chat/conversations**", lambda route: route.abort())
        with page.expect_event("requestfailed"):
            ask(page, COUNT)
            expect_answers(page, 1)
        page.unroute("**/chat/conversations**")
        with page.expect_request(lambda request: request.method == "PUT") as sent:
            page.reload()
        messages = sent.value.post_data_json["messages"]
        assert COUNT in [message["text"] for message in messages]
        expect_answers(page, 1)


@pytest.mark.slow
def test_what_the_server_refuses_is_named_and_does_not_hold_up_the_rest(storing: Site) -> None:
    (storing.home / "chats").write_text("a file in the place of the folder")
    notice = '[data-chat="unsent"]'
    with talking(storing, "Failed to load resource") as page:
        ask(page, COUNT)
        expect_answers(page, 1)
        expect(page.locator(notice)).to_contain_text("not on the server")
        (storing.home / "chats").unlink()
        exchange(page)
        expect(page.locator(notice)).to_be_hidden()
