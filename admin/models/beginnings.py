"""Beginnings of a model's prompts that return, as its page lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.clients.apps import client_name
from omlx.server.prefixes import Forecast

MAX_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class BeginningRow:
    """`client` is empty if it is unknown, `words` unless the texts of prompts may be shown.

    `first_token_s` is None while that is not known.
    """

    client: str
    words: str
    tokens: int
    used_at: float
    warm: bool
    first_token_s: float | None


def beginning_rows(forecasts: Sequence[Forecast], *, shows_prompts: bool) -> list[BeginningRow]:
    return [
        BeginningRow(
            client=client_name(each.known.client),
            words=first_words(each) if shows_prompts else "",
            tokens=each.tokens,
            used_at=each.known.used_at,
            warm=each.now is not None and each.now.cached >= each.tokens,
            first_token_s=None if each.now is None else each.now.first_token_s,
        )
        for each in forecasts
    ]


def first_words(forecast: Forecast) -> str:
    """Return how its first system message begins; of tools alone, nothing."""
    messages = forecast.known.beginning.messages
    text = " ".join(str(messages[0]["content"]).split()) if messages else ""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
