"""The list of beginnings that return."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.admin.models.model_page import MAX_CHARACTERS, beginning_rows, first_words
from omlx.engine.types import PromptForecast
from omlx.server.beginnings.beginning import Beginning
from omlx.server.beginnings.store import Known
from omlx.server.prefixes import Forecast


def forecast(*texts: str) -> Forecast:
    messages = tuple({"role": "system", "content": text} for text in texts)
    known = Known("m", Beginning(messages, (), {}), 2, "agent/1", 1e9)
    return Forecast(known, 600, PromptForecast(600, 0.02))


@pytest.mark.parametrize(
    ("texts", "words"),
    [(("You  edit\nprograms.", "And more."), "You edit programs."), ((), "")],
)
def test_it_begins_with_its_first_words(texts: tuple[str, ...], words: str) -> None:
    assert first_words(forecast(*texts)) == words
    (allowed,) = beginning_rows([forecast(*texts)], shows_prompts=True)
    assert (allowed.client, allowed.words, allowed.tokens) == ("agent/1", words, 600)
    (hidden,) = beginning_rows([forecast(*texts)], shows_prompts=False)
    assert hidden == replace(allowed, words="")


def test_long_texts_are_cut() -> None:
    words = first_words(forecast("a" * 500))
    assert (len(words), words[-2:]) == (MAX_CHARACTERS, "a…")


def test_it_is_warm_once_all_of_it_is_cached() -> None:
    cold = replace(forecast("a"), now=PromptForecast(599, None))
    rows = beginning_rows([forecast("a"), cold, replace(cold, now=None)], shows_prompts=False)
    assert [(row.warm, row.first_token_s) for row in rows] == [
        (True, 0.02),
        (False, None),
        (False, None),
    ]


def test_a_busy_engine_leaves_its_figures_open() -> None:
    record = replace(forecast("a"), now=None).to_json()
    assert (record["tokens"], record["cached_tokens"], record["first_token_s"]) == (600, None, None)
