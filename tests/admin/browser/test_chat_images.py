"""Images on the chat page, with a vision-language model."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import Registry
from tests.admin.browser.site import open_site
from tests.admin.browser.test_chat import answers, ask, expect_answers, open_chat
from tests.models.vision.folders import save_vlm
from tests.server.running import DEMO, TARGET

pytestmark = [pytest.mark.needs_extra, pytest.mark.slow]
IMAGE = Path(__file__).resolve().parents[3] / "docs/screenshots/login-phone-light.png"


def test_a_model_that_sees_gets_the_attached_image(browser: Browser, tmp_path: Path) -> None:
    save_vlm("smolvlm", tmp_path / "models" / "smolvlm")
    entry = inspect_checkpoint("smolvlm", tmp_path / "models" / "smolvlm", "test")
    registry = Registry((*DEMO.entries, entry))
    with open_site(browser, tmp_path / "home", registry) as site, site.visit() as visit:
        page = visit.page
        open_chat(page)
        attach = page.locator('[data-action="attach"]')
        expect(attach).to_be_disabled()
        page.locator("#chat-model").select_option("smolvlm")
        expect(attach).to_be_enabled()
        with page.expect_file_chooser() as chooser:
            attach.click()
        chooser.value.set_files([IMAGE, Path(__file__)])
        expect(page.locator(".composer .problem")).to_contain_text("Only PNG, JPEG")
        expect(page.locator(".composer canvas")).to_have_count(1)
        page.locator('[name="maxTokens"]').evaluate("(field) => (field.value = '4')")
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
        visit.complaints.expect("400")
        page.locator("#chat-model").select_option(TARGET)
        expect(attach).to_be_disabled()
        ask(page, "And now?")
        expect(answers(page, "failed")).to_contain_text("cannot read this image")
