"""Turns of the chat page: answers that are continued, edited and compared, and where they stand."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from omlx.catalog import data_dir
from tests.admin.browser.checks import check_accessible, check_fits, missing
from tests.admin.browser.chromium import DESKTOP, PHONE
from tests.admin.browser.site import CLIPBOARD, Site, copied
from tests.admin.browser.test_chat import (
    COUNT,
    COUNTED,
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
from tests.server.running import DRAFT, TARGET

TEXT: Final = '[data-part="text"]'


def sent_by(page: Page, action: str) -> dict[str, Any]:
    """Press a button that asks the server for an answer, and return the body of its request."""
    with page.expect_request("**/chat/responses") as sent:
        button(page, action).last.click()
    body: dict[str, Any] = sent.value.post_data_json
    return body


@pytest.mark.slow
def test_an_answer_that_was_cut_is_continued(chatting: Site) -> None:
    with talking(chatting) as page:
        expect(page.locator("[data-field=thinking]")).not_to_have_attribute("hidden", "")
        fill(page, maxTokens="6", thinking="off", seed="3", temperature="0")
        ask(page, COUNT)
        expect_answers(page, 1)
        cut = answers(page).locator(TEXT).inner_text()
        assert COUNTED.startswith(cut.strip())
        fill(page, maxTokens="")
        body = sent_by(page, "continue")
        assert body["continue_final_message"] is True
        assert body["input"][-1] == {"role": "assistant", "content": cut.rstrip()}
        expect(answers(page).locator(TEXT)).to_have_text(COUNTED)
        expect_answers(page, 1)
        expect(button(page, "continue")).to_have_count(0)
        page.reload()
        expect(answers(page).locator(TEXT)).to_have_text(COUNTED)


@pytest.mark.slow
def test_a_stopped_answer_goes_on_and_its_twin_stops_where_it_does(chatting: Site) -> None:
    with talking(chatting) as page:
        with held(chatting, page) as go_on:
            page.locator("h1").click()  # Escape stops wherever the focus is
            page.keyboard.press("Escape")
            go_on.set()
            expect_answers(page, 1, "stopped")
        stopped = answers(page, "stopped").locator(TEXT).inner_text()
        assert 0 < stopped.count("word") < 100
        fill(page, schema="")
        button(page, "versus").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        body = sent_by(page, "continue")
        assert body["input"][-1]["content"] == stopped.rstrip()
        assert body["continue_final_message"] is True
        expect_answers(page, 0, "running")
        assert page.locator(TEXT).first.inner_text().startswith(stopped.rstrip())


def test_an_edited_answer_is_a_branch_that_can_be_continued(chatting: Site) -> None:
    with talking(chatting) as page:
        ask(page, COUNT)
        expect_answers(page, 1)
        button(answers(page), "edit").click()
        editor = page.locator(".edit-form:visible textarea")
        expect(editor).to_have_value(COUNTED)
        page.keyboard.press("Escape")
        expect(editor).to_have_count(0)
        expect(button(answers(page), "edit")).to_be_focused()
        button(answers(page), "edit").click()
        editor.fill("1, 2, 3")
        page.get_by_role("button", name="Save as a new version").click()
        expect(answers(page).locator(TEXT)).to_have_text("1, 2, 3")
        expect(page.locator(".answer-note:visible")).to_have_text("Edited")
        expect(page.locator(".answer [data-branches]")).to_contain_text("2 / 2")
        fill(page, thinking="off", temperature="0")
        body = sent_by(page, "continue")
        assert body["input"][-1]["content"] == "1, 2, 3"
        expect_answers(page, 1)
        button(answers(page), "before").click()
        expect(answers(page).locator(TEXT)).to_have_text(COUNTED)


def long_conversation(page: Page, turns: int) -> None:
    for number in range(1, turns + 1):
        ask(page, COUNT)
        expect_answers(page, number)


@pytest.mark.slow
@needs_markdown
def test_the_turn_beside_which_another_is_generated_stays_in_its_place(chatting: Site) -> None:
    tops = """(id) => {
      const turn = document.getElementById(id);
      return [turn.getBoundingClientRect().top, turn.getBoundingClientRect().width];
    }"""
    with talking(chatting) as page:
        page.set_viewport_size({"width": 1600, "height": 700})
        long_conversation(page, 6)
        turns = page.locator(".turn")
        third, other = (turns.nth(place).get_attribute("id") for place in (5, 7))
        plain = button(turns.nth(5), "plain")
        plain.scroll_into_view_if_needed()
        (top, _), (_, width) = page.evaluate(tops, third), page.evaluate(tops, other)
        plain.click()
        expect(page.locator(".turn-pair .pair-verdict")).to_contain_text("identical")
        after, wide = page.evaluate(tops, third)
        assert abs(after - top) <= 1
        assert wide > width
        assert page.evaluate(tops, other)[1] == width
        check_fits(page)


@pytest.mark.slow
def test_a_plain_twin_is_no_longer_than_its_original(chatting: Site) -> None:
    with talking(chatting) as page:
        fill(page, maxTokens="12", thinking="off")
        ask(page, COUNT)
        expect_answers(page, 1)
        fill(page, maxTokens="")
        body = sent_by(page, "plain")
        assert body["max_output_tokens"] == 12
        expect_answers(page, 2)
        expect(page.locator(".turn-pair .pair-verdict")).to_contain_text("identical")
        button(page, "unpair").click()
        expect_answers(page, 1)
        expect(page.locator(".turn-pair")).to_have_count(0)
        expect(button(page, "versus")).to_be_focused()
        page.reload()
        expect_answers(page, 1)


def test_two_models_answer_one_question_side_by_side(chatting: Site) -> None:
    with talking(chatting) as page:
        ask(page, COUNT)
        expect_answers(page, 1)
        button(page, "versus").click()
        choice = page.get_by_role("dialog").get_by_label("Model")
        assert TARGET not in choice.locator("option").all_inner_texts()
        choice.select_option(DRAFT)
        with page.expect_request("**/chat/responses") as sent:
            page.get_by_role("dialog").get_by_role("button", name="Compare").click()
        assert sent.value.post_data_json["model"] == DRAFT
        assert "speculation" not in sent.value.post_data_json
        expect_answers(page, 2)
        expect(page.locator(".turn-pair .answer-model")).to_have_text([TARGET, DRAFT])
        expect(page.locator(".pair-verdict:visible")).to_have_count(0)
        check_accessible(page, [DESKTOP, PHONE])
        check_fits(page)
        button(page, "adopt").click()
        expect_answers(page, 1)
        expect(page.locator(".answer-model")).to_have_text(DRAFT)
        expect(page.locator(".answer [data-branches]")).to_contain_text("2 / 2")
        page.reload()
        expect(page.locator(".answer-model")).to_have_text(DRAFT)


@pytest.mark.slow
@needs_markdown
def test_nothing_of_a_turn_is_cut_and_the_page_has_one_scrollbar(chatting: Site) -> None:
    cut = """() => [...document.querySelectorAll(".turn .icon-button, .turn .text-button")]
      .filter((button) => button.checkVisibility())
      .filter((button) => {
        const turn = button.closest(".turn").getBoundingClientRect();
        const { top, bottom, left, right } = button.getBoundingClientRect();
        return top < turn.top || bottom > turn.bottom || left < turn.left || right > turn.right;
      }).map(({ title, textContent }) => title || textContent)"""
    with talking(chatting) as page:
        for viewport in (DESKTOP, PHONE):
            page.set_viewport_size(viewport)
            height = page.evaluate("document.scrollingElement.scrollHeight")
            assert height == viewport["height"]
        long_conversation(page, 2)
        for viewport in (DESKTOP, PHONE):
            page.set_viewport_size(viewport)
            assert page.evaluate(cut) == []


@pytest.mark.slow
@needs_markdown
def test_tables_are_aligned_and_footnotes_are_small(chatting: Site) -> None:
    render = """async (text) => {
      const { loadMarkdown, Prose } = await import("/admin/static/js/chat/markdown.js");
      await loadMarkdown();
      const element = document.createElement("div");
      element.className = "prose";
      document.querySelector("main").append(element);
      new Prose(element, () => {}).update(text);
      const cells = [...element.querySelectorAll("td")];
      return { aligns: cells.map((cell) => getComputedStyle(cell).textAlign),
               raised: [...element.querySelectorAll("sup")].map((sup) => sup.textContent),
               note: element.querySelector(".footnote").textContent, text: element.textContent };
    }"""
    table = "| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |\n\n"
    text = f"{table}So it is[^1], not `[^2]`.\n\n[^1]: A *source*.\n"
    with talking(chatting) as page:
        seen: dict[str, Any] = page.evaluate(render, text)
    assert seen["aligns"] == ["start", "center", "end"]
    assert seen["raised"] == ["1", "1"]
    assert seen["note"].strip() == "1 A source."
    assert "[^2]" in seen["text"]


BLOCKS: Final = {
    "mermaid": "graph LR\n  A[Ask] --> B[Answer]",
    "html": """<p id="shown">before</p><script>
      document.querySelector("#shown").textContent = "script ran";
      let reached = "nothing";
      try { reached = parent.document.title } catch {}
      fetch("/admin/api/session").then(() => reached = "server", () => {}).finally(() => {
        document.body.dataset.reached = reached;
      });
    </script>""",
}
SHOW_BLOCKS: Final = """async (blocks) => {
  const store = await import("/admin/static/js/chat/store.js");
  const fence = "```";
  const block = ([name, text]) => [fence + name, text, fence].join("\\n");
  const texts = Object.entries(blocks).map(block);
  const settings = { model: "m", system: "", temperature: "", maxTokens: "", thinking: "", seed: "",
    schema: "" };
  const head = { id: "p", title: "Previews", created: 1, updated: 1, leaf: "2", settings };
  const common = { conversation: "p", created: 1, images: [] };
  const messages = [
    { ...common, id: "1", role: "user", parent: null, text: "Draw" },
    { ...common, id: "2", role: "assistant", parent: "1", text: texts.join("\\n\\n"), reasoning: "",
      drafted: [], status: "done", model: "m", attempt: 1 }];
  await store.addAll({ conversation: head, messages, images: [] });
}"""


@needs_markdown
def test_previews_are_drawn_in_a_frame_that_reaches_nothing(chatting: Site) -> None:
    if not (data_dir("static") / "vendor" / "mermaid").is_dir():
        missing("no library of diagrams: `make assets` brings it, where npm is")
    # The frame's policy refuses its request, and says so in the console.
    expected = "Content Security Policy|policy: connect-src|Refused|ERR_"
    with talking(chatting, expected, permissions=CLIPBOARD) as page:
        page.evaluate(SHOW_BLOCKS, dict(BLOCKS))
        open_chat(page, "/admin/chat#p")
        page.reload()
        previews = page.get_by_role("button", name="Preview", exact=True)
        expect(previews).to_have_count(2)
        expect(page.locator("iframe")).to_have_count(0)
        for place in range(2):
            previews.nth(place).click()
        diagram, document = (page.locator("iframe").nth(place).content_frame for place in range(2))
        expect(diagram.locator("svg")).to_contain_text("Answer")
        expect(document.locator("#shown")).to_have_text("script ran")
        expect(document.locator("body")).to_have_attribute("data-reached", "nothing")
        expect(page.locator("pre:visible")).to_have_count(0)
        check_fits(page)
        page.get_by_role("button", name="Copy", exact=True).nth(1).click()
        expect(page.locator("[data-announcer]")).to_have_text("Copied")
        assert copied(page).strip() == BLOCKS["mermaid"]
        previews.first.click()
        expect(page.locator("pre:visible")).to_have_count(1)
        expect(page.locator("iframe")).to_have_count(1)


@pytest.mark.slow
@pytest.mark.needs_extra
def test_the_fill_of_the_meter_is_as_high_as_the_meter(chatting: Site) -> None:
    from PIL import Image  # noqa: PLC0415  # of an extra

    with talking(chatting) as page:
        page.locator("[name=question]").fill("word " * 2500)
        meter = page.locator(".context meter")
        expect(meter).to_be_visible()
        accent = page.evaluate("""() => {
          const button = document.querySelector('[data-action="send"]');
          return getComputedStyle(button).backgroundColor.match(/\\d+/g).map(Number);
        }""")
        picture = Image.open(BytesIO(meter.screenshot())).convert("RGB")
    column = [picture.getpixel((picture.width // 4, y)) for y in range(picture.height)]
    assert column.count(tuple(accent)) >= 6
