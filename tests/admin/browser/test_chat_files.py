"""Files in chat, and the choice of a model, in a browser."""

from __future__ import annotations

import base64
import re
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from omlx.models.pool.speculation import check_value
from omlx.settings.store import Store
from tests.admin.browser.checks import check_accessible, check_fits
from tests.admin.browser.chromium import DESKTOP, NARROW, PHONE
from tests.admin.browser.site import Site, open_site
from tests.admin.browser.test_chat import IMAGE, answers, ask, choose, expect_answers, fill, talking
from tests.server.media.pdfs import encrypted, pdf
from tests.server.running import DRAFT, TARGET

PAGES: Final = tuple(f"Page {number}" for number in range(1, 201))


def attach(page: Page, *files: Path) -> None:
    page.locator(".composer input[type=file]").set_input_files(files)


def chips(page: Page) -> Locator:
    return page.locator(".composer .file-chip:has(span)")


def problem(page: Page) -> Locator:
    return page.locator(".composer .problem")


def text_of(part: dict[str, Any]) -> str:
    return base64.b64decode(part["file_data"].partition(",")[2]).decode()


def test_text_code_and_pdf_are_read_into_the_prompt_and_cached(
    chatting: Site, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("Rivers: Rhône.\n", encoding="utf-8")
    (tmp_path / "sum.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    (tmp_path / "book.pdf").write_bytes(pdf(*PAGES))
    with talking(chatting) as page:
        fill(page, maxTokens="4")
        attach(page, tmp_path / "notes.txt", tmp_path / "sum.py", tmp_path / "book.pdf")
        expect(chips(page)).to_have_count(3)
        expect(chips(page).first).to_contain_text(re.compile(r"notes\.txt16\s*B · [1-9]\d* tokens"))
        expect(chips(page).last).to_contain_text(re.compile(r"kB · \d\s\d{3} tokens"))
        with page.expect_request("**/chat/responses") as sent:
            ask(page, "What is on page 7?")
        *files, text = sent.value.post_data_json["input"][0]["content"]
        assert [part["filename"] for part in files] == ["notes.txt", "sum.py", "book.pdf"]
        assert text_of(files[0]) == "Rivers: Rhône.\n"
        assert text_of(files[2]).split("\n\n") == list(PAGES)
        assert text["text"] == "What is on page 7?"
        expect_answers(page, 1)
        expect(chips(page)).to_have_count(0)
        page.reload()
        expect(page.locator(".question .file-chip")).to_have_count(3)

        ask(page, "And on page 8?")
        expect_answers(page, 2)
        cached = re.compile(r"([\d\s]+) of ([\d\s]+) prompt tokens cached")
        figures = answers(page).last.locator(".figures-line")
        expect(figures).to_contain_text(cached)
        found = cached.search(figures.text_content() or "")
        assert found is not None
        used, prompt = (int(re.sub(r"\s", "", figure)) for figure in found.groups())
        assert used > 0.9 * prompt


def test_a_file_that_cannot_be_used_gets_a_sentence_and_nothing_is_lost(
    chatting: Site, tmp_path: Path
) -> None:
    (tmp_path / "secret.pdf").write_bytes(encrypted(pdf("x")))
    (tmp_path / "scan.pdf").write_bytes(pdf("", ""))
    (tmp_path / "torn.pdf").write_bytes(pdf("x")[:20])
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("a", "b" * 100)
    with (tmp_path / "huge.txt").open("wb") as huge:
        huge.truncate(1 << 30)  # a file with a hole takes no room
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    sentences = {
        "secret.pdf": "secret.pdf is encrypted",
        "scan.pdf": "its pages are pictures",
        "torn.pdf": "torn.pdf is damaged",
        "all.zip": "neither text, code, PDF nor an image",
        "huge.txt": "huge.txt is larger than 20 MB",
        IMAGE.name: f"{TARGET} does not read images. The model is a text model.",
    }
    with talking(chatting, "400") as page:
        (tmp_path / "good.md").write_text("# Kept", encoding="utf-8")
        attach(page, tmp_path / "good.md")
        page.locator("[name=question]").fill("Kept, too")
        for name, sentence in sentences.items():
            attach(page, IMAGE if name == IMAGE.name else tmp_path / name)
            expect(problem(page)).to_contain_text(sentence)
        expect(chips(page)).to_have_count(1)
        expect(page.locator("[name=question]")).to_have_value("Kept, too")
        page.get_by_role("button", name="Remove good.md").click()
        expect(chips(page)).to_have_count(0)


def test_more_text_than_the_context_is_said_before_it_is_sent(
    chatting: Site, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("word " * 9000, encoding="utf-8")
    with talking(chatting) as page:
        attach(page, tmp_path / "long.txt")
        expect(problem(page)).to_contain_text(re.compile(r"context of omlx-demo/target has 4\s096"))
        page.get_by_role("button", name="Remove long.txt").click()
        expect(problem(page)).to_be_hidden()


def test_the_model_is_picked_by_keys_and_drafts_are_hidden(chatting: Site) -> None:
    with talking(chatting) as page:
        button = page.locator("#chat-model")
        expect(button).to_contain_text(TARGET)
        button.press("Enter")
        search, options = page.locator(".picker input"), page.locator(".picker [role=option]")
        expect(search).to_be_focused()
        expect(options.filter(has_text=TARGET)).to_have_attribute("aria-selected", "true")
        expect(options.filter(has_text=TARGET)).to_contain_text(re.compile("tools.*Reasoning"))
        expect(options.filter(has_text=DRAFT)).to_have_count(0)
        page.keyboard.type("draft")
        expect(options).to_have_count(1)
        expect(options).to_contain_text("draft model")
        page.keyboard.type("no such")
        expect(page.get_by_text("No model has this name.")).to_be_visible()
        page.keyboard.press("Control+a")
        page.keyboard.type("DRAFT demo")
        expect(options).to_have_count(1)
        check_accessible(page, [DESKTOP])
        page.keyboard.press("Enter")
        expect(search).to_be_hidden()
        expect(button).to_be_focused()
        expect(button).to_contain_text(DRAFT)
        button.press("Enter")
        page.keyboard.press("Escape")
        expect(search).to_be_hidden()
        expect(button).to_contain_text(DRAFT)


@pytest.mark.slow
def test_files_and_the_list_of_models_fit_a_phone(chatting: Site, tmp_path: Path) -> None:
    name = "a-report-with-an-unusually-long-name-" * 3 + ".txt"
    (tmp_path / name).write_text("text", encoding="utf-8")
    with talking(chatting, viewport=NARROW) as page:
        attach(page, tmp_path / name)
        expect(chips(page)).to_have_count(1)
        page.locator("#chat-model").click()
        expect(page.locator(".picker [role=option]").first).to_be_visible()
        check_accessible(page, [PHONE])
        check_fits(page, [NARROW])


@pytest.mark.slow
def test_a_profile_is_an_assistant(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path, check_value)
    store.patch({"system_prompt": "Answer in numbers.", "top_p": 0.5}, TARGET, "counter")
    with open_site(browser, tmp_path) as site, talking(site) as page:
        choose(page, f"{TARGET}:counter")
        page.get_by_role("button", name="Chat settings").click()
        prompt = page.get_by_label("System prompt")
        expect(prompt).to_have_attribute("placeholder", "Answer in numbers.")
        page.get_by_text("More sampling settings").click()
        expect(page.get_by_label("Top-p")).to_have_attribute("placeholder", "0.5")
        fill(page, maxTokens="4")
        with page.expect_request("**/chat/responses") as sent:
            ask(page, "Hello")
        body = sent.value.post_data_json
        assert (body["model"], "instructions" in body) == (f"{TARGET}:counter", False)
        expect_answers(page, 1)
        engine = site.running.engine
        assert engine.newest is not None
        tokenizer = site.running.pool.loaded[0].tokenizer
        assert "Answer in numbers." in tokenizer.decode(list(engine.newest.tokens))


DRAFT_WITH_FILE = """() => new Promise((found) => {
  indexedDB.open("omlx-chat").onsuccess = ({ target: { result: database } }) => {
    const drafts = database.transaction("drafts").objectStore("drafts").getAll();
    drafts.onsuccess = () => {
      database.close();
      found(drafts.result.some(({ files }) => files?.length));
    };
  };
})"""
"""Whether the browser's database has what a page that is left may not finish writing."""


def test_a_dropped_file_stays_on_the_page(chatting: Site) -> None:
    drop = """() => {
      const data = new DataTransfer();
      data.items.add(new File(["text"], "dropped.txt"));
      const options = { bubbles: true, cancelable: true, dataTransfer: data };
      const event = new DragEvent("drop", options);
      document.querySelector(".chat-main").dispatchEvent(event);
      return event.defaultPrevented;
    }"""
    with talking(chatting) as page:
        assert page.evaluate(drop), "the browser would leave the chat for the file"
        expect(chips(page)).to_contain_text("dropped.txt")
        page.wait_for_function(DRAFT_WITH_FILE)
        page.reload()  # what is not sent yet is kept with its files
        expect(chips(page)).to_contain_text("dropped.txt")
