"""Which language a browser gets, and how figures are written."""

from __future__ import annotations

import pytest

from omlx.admin.formats import model_path, percent, ratio, size
from omlx.admin.language import choose

AVAILABLE = ("en", "ja", "ko", "zh")


@pytest.mark.parametrize(
    ("chosen", "accepted", "given"),
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
def test_the_one_that_was_chosen_else_the_one_preferred(
    chosen: str | None, accepted: str | None, given: str
) -> None:
    assert choose(chosen, accepted, AVAILABLE) == given


def test_figures() -> None:
    assert [size(n) for n in (0, 1_748_960, 812_000_000, 1_300_000_000, 17_200_000_000)] == [
        "0.0\u202fMB",
        "1.7\u202fMB",
        "812\u202fMB",
        "1.3\u202fGB",
        "17\u202fGB",
    ]
    assert [ratio(value) for value in (0.94, 1.0, 1.04, 1.06, 1.62, 12.34)] == [
        "0.94×",
        "1.00×",
        "1.04×",
        "1.1×",
        "1.6×",
        "12.3×",
    ]
    assert percent(0.744) == "74\u202f%"


def test_the_address_of_a_model_keeps_its_slashes_and_nothing_else() -> None:
    assert model_path("org/a b?c#d") == "/admin/models/org/a%20b%3Fc%23d"
