"""The chat page in a browser, with a model that knows the answer."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.admin.browser.conftest import browser
from tests.admin.browser.site import open_site
from tests.admin.browser.test_chat import answers, ask, expect_answers, open_chat
from tests.real.models import REGISTRY, SMOLLM2

__all__ = ["browser"]


def test_an_answer(browser: Browser, tmp_path: Path) -> None:
    with (
        open_site(browser, tmp_path, REGISTRY, default=SMOLLM2.id) as site,
        site.visit() as visit,
    ):
        open_chat(visit.page)
        ask(visit.page, "What is the capital of France?")
        expect_answers(visit.page, 1)
        expect(answers(visit.page)).to_contain_text("Paris")
