"""The chat page in a browser, with a real server behind it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

from omlx.catalog import data_dir
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import Registry
from tests.admin.browser.checks import check_accessible, check_fits
from tests.admin.browser.chromium import DESKTOP, PHONE
from tests.admin.browser.site import CLIPBOARD, Site, copied, open_site
from tests.models.vision.folders import save_vlm
from tests.server.running import DEMO, DRAFT, TARGET

COUNT: Final = "Count to 20."
COUNTED: Final = ", ".join(map(str, range(1, 21)))
LONG: Final = json.dumps(
    {"type": "array", "items": {"enum": ["word"]}, "minItems": 100, "maxItems": 100}
)
"""A schema whose answers take a while."""
VENDOR: Final = data_dir("static") / "vendor" / "marked"

needs_markdown = pytest.mark.skipif(
    not VENDOR.exists(), reason="no Markdown library: `make assets` brings it, where npm is"
)


def open_chat(page: Page, path: str = "/admin/chat") -> None:
    page.goto(path)
    page.locator("omlx-chat[data-ready]").wait_for()


@contextmanager
def talking(site: Site, *expected: str, **options: Any) -> Iterator[Page]:
    """The chat page in a new browser profile."""
    with site.open("", *expected, **options) as page:
        open_chat(page)
        yield page


def ask(page: Page, text: str) -> None:
    page.locator("[name=question]").fill(text)
    page.keyboard.press("Enter")


def answers(page: Page, status: str = "done") -> Locator:
    return page.locator(f'.answer[data-status="{status}"]')


def expect_answers(page: Page, count: int, status: str = "done") -> None:
    expect(answers(page, status)).to_have_count(count)


def button(page: Page | Locator, action: str) -> Locator:
    return page.locator(f'[data-action="{action}"]:visible')


@contextmanager
def held(site: Site, page: Page) -> Iterator[threading.Event]:
    """Ask for a long answer; the engine stands still after its first words, until the event."""
    fill(page, schema=LONG, thinking="off")
    ask(page, "Write words.")
    expect(page.locator('.answer [data-part="text"]').last).to_contain_text("word")
    with site.running.engine.held() as event:
        yield event


def choose(page: Page, model: str) -> None:
    page.locator("#chat-model").click()
    page.locator(".picker input").fill(model)
    page.locator(f'.picker [data-model="{model}"]').click()
    expect(page.locator("#chat-model")).to_contain_text(model)


def fill(page: Page, **settings: str) -> None:
    """Set fields of the closed panel of settings."""
    script = """(settings) => {
      const form = document.querySelector("#chat-settings form");
      for (const name in settings) form.elements[name].value = settings[name];
    }"""
    page.evaluate(script, settings)


@needs_markdown
def test_a_conversation_by_keyboard_alone(chatting: Site) -> None:
    with talking(chatting, permissions=CLIPBOARD) as page:
        keyboard = page.keyboard
        expect(page.locator("[name=question]")).to_be_focused()
        keyboard.type(f"{COUNT}")
        keyboard.press("Shift+Enter")
        keyboard.press("Enter")
        expect_answers(page, 1)
        expect(answers(page)).to_contain_text(COUNTED)
        expect(page.locator(".bubble")).to_have_text(COUNT)
        summary, figures = page.locator(".answer-figures summary"), page.locator(".figures-line")
        expect(summary).to_contain_text("tok/s")
        expect(figures).to_be_hidden()
        summary.focus()
        keyboard.press("Enter")
        expect(figures).to_be_visible()
        expect(figures).to_contain_text(
            re.compile(
                r"first token.*tokens.*of draft tokens accepted.*prompt tokens cached.*seed", re.S
            )
        )
        expect(page.locator("h1")).to_have_text(COUNT)
        expect(page.locator("[role=log]")).to_contain_text("20")

        copy = button(answers(page), "copy")
        copy.focus()
        keyboard.press("Enter")
        expect(page.locator("[data-announcer]")).to_have_text("Copied")
        assert copied(page) == COUNTED
        keyboard.press("Control+k")
        expect(page.locator("h1")).to_have_text("New conversation")
        expect(page.locator("[name=question]")).to_be_focused()
        keyboard.type("Hello")
        keyboard.press("Enter")
        expect_answers(page, 1)
        expect(page.locator(".conversation")).to_have_count(2)

        page.get_by_role("searchbox").focus()
        keyboard.type("count TO")
        expect(page.locator(".conversation")).to_have_count(1)
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(COUNT)
        page.get_by_role("button", name=f"Delete “{COUNT}”").focus()
        keyboard.press("Enter")
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(page.locator(".conversation")).to_have_count(0)  # the search is still there
        expect(page.locator("h1")).to_have_text("New conversation")


def test_edited_and_regenerated_turns_are_branches(chatting: Site) -> None:
    with talking(chatting) as page:
        fill(page, seed="7")
        ask(page, COUNT)
        expect_answers(page, 1)
        ask(page, "Hello")
        expect_answers(page, 2)
        page.keyboard.press("ArrowUp")  # edits the last question
        editor = page.locator(".edit-form:visible textarea")
        expect(editor).to_have_value("Hello")
        editor.fill("What are you?")
        page.get_by_role("button", name="Send").first.click()
        expect(page.locator(".bubble").last).to_have_text("What are you?")
        expect_answers(page, 2)
        branches = page.locator("[data-branches]:visible")
        expect(branches).to_contain_text("2 / 2")
        button(branches, "before").click()
        expect(page.locator(".bubble").last).to_have_text("Hello")
        expect(button(branches, "before")).to_be_focused()

        choose(page, DRAFT)
        button(answers(page).first, "regenerate").click()
        expect(page.locator(".bubble")).to_have_count(1)
        expect_answers(page, 1)
        expect(page.locator(".answer-model")).to_have_text(DRAFT)
        expect(answers(page)).to_contain_text("seed 7")
        page.reload()
        expect(branches).to_contain_text("2 / 2")
        button(branches, "before").click()
        expect(page.locator(".bubble")).to_have_text([COUNT, "What are you?"])


def test_stop_keeps_the_text_and_a_second_answer_follows(chatting: Site) -> None:
    with talking(chatting) as page:
        with held(chatting, page) as go_on:
            page.keyboard.press("Escape")
            go_on.set()
            expect_answers(page, 1, "stopped")
        expect(answers(page, "stopped")).to_contain_text("word")
        expect(page.locator(".answer-note:visible")).to_have_text("Stopped")
        fill(page, schema="")
        copy = button(answers(page, "stopped"), "copy")
        with page.expect_response("**/chat/responses"):
            ask(page, "Hello")
            copy.focus()
        expect_answers(page, 1)
        expect(copy).to_be_focused()


def test_a_reload_takes_up_the_answer_and_a_second_window_follows(chatting: Site) -> None:
    # The window that is first deletes the record of a finished answer.
    with talking(chatting, "404.*/chat/responses/") as page:
        with held(chatting, page) as go_on:
            page.reload()
            expect(answers(page, "running")).to_contain_text("word")
            other = page.context.new_page()
            open_chat(other, page.url)
            expect(answers(other, "running")).to_contain_text("word")
            go_on.set()
            for window in (page, other):
                expect_answers(window, 1)
        texts = [
            answers(window).locator('[data-part="text"]').inner_text() for window in (page, other)
        ]
        assert texts[0] == texts[1]
        assert json.loads(texts[0].replace("\n", " ")).count("word") == 100
        other.close()


def test_drafts_are_tinted_and_compared_with_none(chatting: Site) -> None:
    drafted = """() => [...(CSS.highlights.get("drafted") ?? [])]
      .map((range) => range.startContainer.data.slice(range.startOffset, range.endOffset))"""
    with talking(chatting) as page:
        ask(page, COUNT)
        expect_answers(page, 1)
        assert page.evaluate(drafted) == []
        button(page, "tint").click()
        tinted = page.evaluate(drafted)
        assert 0 < len("".join(tinted)) < len(COUNTED)
        assert set("".join(tinted)) <= set(COUNTED)
        button(page, "tint").click()
        assert page.evaluate(drafted) == []

        with page.expect_request("**/chat/responses") as sent:
            button(page, "plain").click()
        assert sent.value.post_data_json["speculation"] == "off"
        expect_answers(page, 2)
        expect(page.locator(".badge:visible")).to_have_text(["With drafts", "Without drafts"])
        verdict = page.locator(".turn-pair .pair-verdict")
        expect(verdict).to_contain_text("Both answers are identical")
        seeds = [
            re.search(r"seed \d+", text)[0]  # type: ignore[index]  # every answer shows one
            for text in answers(page).all_text_contents()
        ]
        assert seeds[0] == seeds[1]
        expect(button(page, "plain")).to_have_count(0)


def test_settings_are_sent_and_checked(chatting: Site) -> None:
    with talking(chatting, "400") as page:
        page.get_by_role("button", name="Chat settings").click()
        page.get_by_text("More sampling settings").click()
        share = page.get_by_label("Top-p")
        share.fill("2")
        page.get_by_text("More sampling settings").click()
        ask(page, COUNT)
        expect(share).to_be_focused()  # the closed part is opened
        expect(page.locator(".problem:visible")).to_contain_text("0–1")
        share.fill("0.9")
        page.get_by_label("System prompt").fill("Answer in numbers.")
        page.get_by_label("Reasoning").select_option("off")
        longest = page.get_by_label("Max output tokens")
        longest.fill("many")
        ask(page, COUNT)
        expect(longest).to_be_focused()
        expect(page.locator(".problem:visible")).to_contain_text("1–")
        longest.fill("3")
        with page.expect_request("**/chat/responses") as sent:
            ask(page, COUNT)
        body = sent.value.post_data_json
        assert body["instructions"] == "Answer in numbers."
        assert (body["max_output_tokens"], body["top_p"]) == (3, 0.9)
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        expect_answers(page, 1)
        expect(page.locator(".answer-note").first).to_contain_text("maximum number of output")
        page.get_by_label("JSON schema").fill("{")
        ask(page, COUNT)
        expect(page.locator(".problem:visible")).to_contain_text("not JSON")
        page.get_by_label("JSON schema").fill('{"type": "nonsense"}')
        ask(page, COUNT)
        expect_answers(page, 1, "failed")
        problem = page.locator(".answer-problem").last.inner_text()
        assert "nonsense" in problem
        assert "{reason}" not in problem
        page.get_by_label("JSON schema").fill("")
        page.locator("[name=question]").fill("word " * 9000)  # too long for the model
        button(page, "send").click()
        expect_answers(page, 2, "failed")
        problem = page.locator(".answer-problem").last
        expect(problem).to_contain_text("Start a new conversation")
        expect(button(page, "retry").last).to_be_visible()


IMAGE: Final = Path(__file__).resolve().parents[3] / "docs/screenshots/login-phone-light.png"


@pytest.mark.slow
@pytest.mark.needs_extra
def test_a_model_that_sees_gets_the_attached_image(browser: Browser, tmp_path: Path) -> None:
    save_vlm("smolvlm", tmp_path / "models" / "smolvlm")
    entry = inspect_checkpoint("smolvlm", tmp_path / "models" / "smolvlm", "test")
    registry = Registry((*DEMO.entries, entry))
    with open_site(browser, tmp_path / "home", registry) as site, talking(site, "400") as page:
        choose(page, "smolvlm")
        with page.expect_file_chooser() as chooser:
            button(page, "attach").click()
        chooser.value.set_files([IMAGE, Path(__file__)])
        expect(page.locator(".composer .file-chip")).to_contain_text("test_chat.py")
        page.get_by_role("button", name="Remove test_chat.py").click()
        expect(page.locator(".composer canvas")).to_have_count(1)
        fill(page, maxTokens="4")
        with page.expect_request("**/chat/responses") as sent:
            ask(page, "What is it?")
        picture, text = sent.value.post_data_json["input"][0]["content"]
        assert picture["image_url"].startswith("data:image/png;base64,")
        assert text == {"type": "input_text", "text": "What is it?"}
        expect_answers(page, 1)
        expect(page.locator(".composer canvas")).to_have_count(0)
        page.reload()
        expect(page.locator(".question").get_by_role("img", name=IMAGE.name)).to_be_visible()

        # The conversation goes to a model that does not see: the server says why.
        choose(page, TARGET)
        ask(page, "And now?")
        expect(answers(page, "failed")).to_contain_text("cannot read this image")


HOSTILE: Final = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    '<svg onload="window.hit = 1"><animate onbegin="window.hit = 1"></svg>',
    "<iframe src='javascript:parent.hit = 1'></iframe>",
    "<style>body { display: none }</style><link rel=stylesheet href=//evil.example/x.css>",
    "<a href='javascript:hit = 1'>x</a><form action=//evil.example><button>x</button></form>",
    "[x](javascript:window.hit=1) [y](JaVaScRiPt:hit) [z](data:text/html,<script>hit</script>)",
    "[x](/admin/logout) [y](//evil.example) [z](vbscript:x) [w](\x01javascript:hit)",
    "![x](https://evil.example/pixel.png) ![y](javascript:hit)",
    '[x](https://a.example/"onmouseover="window.hit=1) <https://a.example/\'">',
    '```html\n<script>window.hit = 1</script>\n```\n```x"onclick=hit\n<b>\n```',
    "$\\href{javascript:hit}{x}$ $$\\htmlStyle{color:red}{x}$$ $\\unicode{x}<b>$",
    "\\(\\def\\x{\\x\\x}\\x\\) $\\rule{1em}{1em}$ $\\colorbox{red}{x}$",
    "| a <img src=x onerror=hit> |\n|---|\n| <script>hit</script> |",
    "<div><p>unclosed <b onmouseover=hit>\n\n*text*",
    "&lt;script&gt;hit()&lt;/script&gt; <!-- <img src=x onerror=hit> --> <![CDATA[<script>]]>",
    '<math><mtext><table><mglyph><style><img src=x onerror="hit">',
    "a" * 5000 + "[" * 300 + "*" * 300 + "`" * 301,
)


@needs_markdown
def test_hostile_answers_are_text(chatting: Site) -> None:
    render = """async (texts) => {
      const { loadMarkdown, Prose } = await import("/admin/static/js/chat/markdown.js");
      await loadMarkdown();
      for (const text of texts) {
        const element = document.createElement("div");
        document.querySelector("main").append(element);
        const prose = new Prose(element, () => {});
        for (let end = 0; end < text.length; end += Math.max(7, text.length >> 4))
          prose.update(text.slice(0, end));
        prose.update(text);
      }
      await new Promise((resolve) => setTimeout(resolve, 100));  // formulas and code come later
      const tags = new Set(), attributes = new Set(), links = [];
      for (const element of document.querySelectorAll(".prose, main > div *")) {
        if (element.closest("math, omlx-chat")) continue;
        tags.add(element.localName);
        for (const { name } of element.attributes) attributes.add(name);
        if (element.href) links.push(element.href);
      }
      const math = document.querySelectorAll("math [href], math [style], math script");
      return { tags: [...tags], attributes: [...attributes], links, hit: window.hit ?? 0,
               math: math.length };
    }"""
    with talking(chatting) as page:
        seen: dict[str, Any] = page.evaluate(render, list(HOSTILE))
        assert seen["hit"] == 0
        assert seen["math"] == 0
        allowed = (
            "div p br strong em del code pre span a table thead tbody tr th td h3 ul li".split()
        )
        assert set(seen["tags"]) <= {*allowed}
        assert set(seen["attributes"]) <= {"href", "rel", "target", "class", "data-math"}
        assert all(link.startswith("https://") for link in seen["links"])
        assert page.locator("body").is_visible()


@needs_markdown
def test_an_answer_is_plain_until_its_libraries_are_loaded(chatting: Site) -> None:
    open_answers = """async () => {
      const { loadMarkdown, Prose } = await import("/admin/static/js/chat/markdown.js");
      await loadMarkdown();
      window.answer = (text) => {
        const element = document.createElement("div");
        document.querySelector("main").append(element);
        const prose = new Prose(element, () => {});
        for (let end = 1; end <= text.length; end += 1) prose.update(text.slice(0, end));
      };
    }"""
    text = "```python\nif x:\n    pass\n```\n\n$x^2$ and more\n"
    with chatting.open("", "ERR_FAILED") as page:
        attempts: list[str] = []

        def cut(route: Route) -> None:
            attempts.append(route.request.url)
            route.abort()

        libraries = re.compile("vendor/(katex|highlight)/")
        page.route(libraries, cut)
        open_chat(page)
        page.evaluate(open_answers)
        failed: list[Request] = []
        page.on("requestfailed", lambda request: failed.append(request))
        with page.expect_event("requestfailed", lambda _: len(failed) >= 2):
            page.evaluate("(text) => answer(text)", text)
        shown = page.locator("main > div")
        expect(shown.locator("code")).to_have_text("if x:\n    pass\n")
        expect(shown.locator("[data-math]")).to_have_text("x^2")
        assert len(attempts) == 2, "one attempt for each library and answer"
        page.unroute(libraries)
        page.evaluate("(text) => answer(text)", text)
        expect(shown.locator("math")).to_have_count(2)
        expect(shown.locator("code > span").filter(has_text="if")).to_have_count(2)
        expect(shown.locator("code").first).to_have_text("if x:\n    pass\n")


def test_export_and_import(chatting: Site, tmp_path: Path) -> None:
    with talking(chatting) as page:
        fill(page, system="Be brief.")
        ask(page, COUNT)
        expect_answers(page, 1)
        files = []
        for action in ("export-markdown", "export-json"):
            page.locator(".chat-menu summary").click()
            with page.expect_download() as download:
                button(page, action).click()
            files.append(tmp_path / download.value.suggested_filename)
            download.value.save_as(files[-1])
        with page.expect_download() as download:
            button(page, "export-all").click()
        files.append(tmp_path / download.value.suggested_filename)
        download.value.save_as(files[-1])
        assert [file.name for file in files] == [
            "Count to 20.md",
            "Count to 20.json",
            "omlx-conversations.json",
        ]
        assert COUNTED in files[0].read_text(encoding="utf-8")
        button(page, "delete-all").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
        expect(page.locator(".conversation")).to_have_count(0)
        for file, number in zip(files, (1, 2, 2), strict=True):  # the last two hold the same one
            page.locator("[data-chat=file]").set_input_files(file)
            expect(page.locator(".conversation")).to_have_count(number)
            expect(page.locator("h1")).to_have_text(COUNT)
            expect(answers(page)).to_contain_text(COUNTED)
            expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
        expect(page.locator("[data-chat=imported]")).to_contain_text("Already here: 1")
        (tmp_path / "other.json").write_text("{}", encoding="utf-8")
        page.locator("[data-chat=file]").set_input_files(tmp_path / "other.json")
        expect(page.get_by_role("alert").locator("visible=true")).to_contain_text(
            "cannot be imported"
        )


@needs_markdown
def test_a_full_page_is_accessible_and_fits(chatting: Site) -> None:
    with talking(chatting) as page:
        for number, text in enumerate((COUNT, "Hello"), 1):
            ask(page, text)
            expect_answers(page, number)
        button(page, "plain").first.click()
        expect_answers(page, 3)
        button(page, "tint").first.click()
        check_accessible(page, [DESKTOP])
        page.set_viewport_size(PHONE)
        page.get_by_role("button", name="Conversations").click()
        expect(page.locator("#chat-history")).to_be_visible()
        check_accessible(page, [PHONE])
        page.keyboard.press("Escape")
        expect(page.locator("#chat-history")).to_be_hidden()
        check_fits(page)
