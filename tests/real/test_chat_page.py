"""The chat page in a browser, with a model that knows the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.admin.browser.conftest import opened
from tests.admin.browser.site import open_site
from tests.admin.browser.test_chat import answers, ask, expect_answers, fill, open_chat
from tests.real.models import REGISTRY, SMOLLM2


@pytest.mark.slow
def test_an_answer(tmp_path: Path) -> None:
    with (
        opened() as browser,
        open_site(browser, tmp_path, REGISTRY, default=SMOLLM2.id) as site,
        site.open() as page,
    ):
        open_chat(page)
        fill(page, temperature="0")
        ask(page, "What is the capital of France?")
        expect_answers(page, 1)
        expect(answers(page)).to_contain_text("Paris")
