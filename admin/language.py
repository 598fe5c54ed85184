"""Which language a browser is answered in: the one chosen in a page, else the one it asks for, else English."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from omlx.catalog import SOURCE

COOKIE: Final = "omlx_language"


def choose(chosen: str | None, accepted: str | None, available: Collection[str]) -> str:
    """`chosen` is what the cookie holds, `accepted` the Accept-Language header: `ko-KR,ko;q=0.9,en;q=0.8`.

    Only the primary part of a tag counts, so that every kind of Chinese gets the one there is.
    """
    if chosen is not None and chosen in available:
        return chosen
    return next(
        (language for language in _by_preference(accepted or "") if language in available), SOURCE
    )


def _by_preference(accepted: str) -> list[str]:
    weighted = [part.partition(";") for part in accepted.split(",")]
    tags = [
        (tag.strip().lower().partition("-")[0], _weight(options)) for tag, _, options in weighted
    ]
    return [
        tag for tag, weight in sorted(tags, key=lambda each: each[1], reverse=True) if weight > 0
    ]


def _weight(options: str) -> float:
    name, _, value = options.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
