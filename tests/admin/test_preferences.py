"""The language of a browser."""

from __future__ import annotations

import pytest

from omlx.admin.web.preferences import choose_language

AVAILABLE = ("en", "ja", "ko", "zh")


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        (None, None, "en"),
        (None, "", "en"),
        (None, "fr,de;q=0.5", "en"),
        (None, "ko-KR,ko;q=0.9,en;q=0.8", "ko"),
        (None, "en;q=0.8,ja;q=0.9", "ja"),
        (None, "zh-Hans-CN", "zh"),
        (None, "zh-TW", "zh"),
        (None, "ZH", "zh"),
        (None, "ko;q=0,ja;q=0.1", "ja"),
        (None, "ko;q=much,ja", "ja"),
        (None, "*", "en"),
        ("ko", "ja", "ko"),
        ("xx", "ja", "ja"),
        ("../en", None, "en"),
    ],
)
def test_the_cookie_decides_then_the_preference_of_the_header(
    cookie: str | None, accepted: str | None, language: str
) -> None:
    assert choose_language(cookie, accepted, AVAILABLE) == language
