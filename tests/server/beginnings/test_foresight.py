"""What is expected of beginnings that came: dates, directories, tools, and where they change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from omlx.engine.prefix.tree import shared_length
from omlx.models.catalog.discovery import BUNDLED
from omlx.server.beginnings.beginning import Beginning, place_of
from omlx.server.beginnings.foresight import (
    DAY_S,
    Expected,
    foresee,
    with_date,
)
from omlx.server.beginnings.prewarmer import tokenize
from omlx.server.beginnings.store import Known
from tests.server.beginnings.agents import (
    AGENTS,
    FOLDERS,
    Moment,
    system,
    tools,
)
from tests.server.running import TARGET

NOON = datetime(2026, 11, 30, 12).timestamp()
RULES = "You edit programs with care.\n" * 80
CONTEXT = 8192
LINE_TOKENS = 80
CLIENT = "agent/1.0 (mac)"


def known(text: str, at: float = NOON, names: Sequence[str] = (), **changed: object) -> Known:
    values = {"conversations": 1, "client": CLIENT, "used_at": at} | changed
    return Known("m", Beginning(system(text), tools(names), {}), **values)  # type: ignore[arg-type]


def in_folder(folder: str, status: str, day: str = "2026-11-30") -> str:
    return f"{RULES}Working directory: {folder}\nToday: {day}\nGit status: {status}\nBe brief."


def names_of(expected: Expected) -> list[str]:
    return [tool["function"]["name"] for tool in expected.beginning.tools]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("2026-11-30", "2026-12-01"),
        ("11/30/2026", "12/1/2026"),
        ("30.11.2026", "1.12.2026"),
        ("Mon Nov 30 2026", "Tue Dec 01 2026"),
        ("Monday, November 30, 2026", "Tuesday, December 1, 2026"),
        ("30 November 2026, in November 2026", "1 December 2026, in December 2026"),
        ("12026-11-300 of 2026-11-30", "12026-11-300 of 2026-12-01"),
        ("2026-11-29", "2026-12-01"),  # the conversation began a day before it was used last
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_a_date_goes_on(then: str, now: str) -> None:
    beginning = Beginning(system(f"It is {then}."), tools(("look",)), {"today": then})
    later = with_date(beginning, NOON, NOON + DAY_S)
    assert later == Beginning(system(f"It is {now}."), tools(("look",)), {"today": now})


def test_a_date_may_be_that_of_greenwich() -> None:
    west = timezone(timedelta(hours=-10))
    evening = datetime(2026, 11, 30, 20, tzinfo=west).timestamp()
    text = f"It is {datetime.fromtimestamp(evening, UTC):%Y-%m-%d}."
    later = with_date(Beginning(system(text), (), {}), evening, evening + DAY_S)
    assert later.system == "It is 2026-12-02."


def test_the_newest_status_of_each_folder_is_expected_today() -> None:
    came = [
        known(in_folder("/a", "two")),
        known(in_folder("/b", "one", "2026-11-29"), NOON - DAY_S),
        known(in_folder("/a", "one", "2026-11-28"), NOON - 2 * DAY_S),
    ]
    expected = foresee(came, NOON + DAY_S)
    assert [one.beginning.system for one in expected] == [
        in_folder("/a", "two", "2026-12-01"),
        in_folder("/b", "one", "2026-12-01"),
    ]
    assert all(one.foreseen for one in expected)
    assert not foresee(came, NOON)[0].foreseen
    lines = [expected[0].beginning.system[at:].partition("\n")[0] for at in expected[0].spans]
    assert lines == ["Working directory: /a", "Today: 2026-12-01", "Git status: two"]


def test_what_came_once_is_not_expected() -> None:
    assert foresee([known(in_folder("/a", "one"))], NOON) == []
    others = [known(f"{word} " * 900, conversations=1) for word in ("red", "blue")]
    assert foresee(others, NOON) == []  # nothing shows that they are of one kind
    of_others = [known(in_folder("/a", "one")), known(in_folder("/b", "one"), client="other/1")]
    assert foresee(of_others, NOON) == []
    twice = known("red " * 900, conversations=2)
    assert [one.known for one in foresee([*others, twice], NOON)] == [twice]


def test_tools_after_an_update_are_those_of_every_folder() -> None:
    came = [
        known(in_folder("/a", "one"), NOON, ("read", "edit", "run")),
        known(in_folder("/b", "one"), NOON - 60, ("read", "edit")),
        known(in_folder("/a", "one"), NOON - 90, ("read", "edit")),
    ]
    assert [names_of(one) for one in foresee(came, NOON)] == [["read", "edit", "run"]] * 2


def test_tools_of_two_modes_stay_apart() -> None:
    came = [
        known(in_folder("/a", "one"), NOON, ("read", "edit")),
        known(in_folder("/b", "one"), NOON - 60, ("read",)),
        known(in_folder("/c", "one"), NOON - 90, ("read", "edit")),
    ]
    assert [names_of(one) for one in foresee(came, NOON)] == [
        ["read", "edit"],
        ["read"],
        ["read", "edit"],
    ]


def test_the_last_two_orders_of_tools_are_expected() -> None:
    orders = [("read", "edit", "run"), ("edit", "read", "run"), ("run", "read", "edit")]
    came = [
        known(in_folder("/a", f"{number}"), NOON - number, order)
        for number, order in enumerate(orders)
    ]
    assert [names_of(one) for one in foresee(came, NOON)] == [list(order) for order in orders[:2]]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Primary working directory: /home/user/shop\n", "/home/user/shop"),
        ("<cwd>~/shop</cwd>", "~/shop"),
        (r"Current folder: C:\Users\me", r"C:\Users\me"),
        ("Keep files in their directory, and/or ask.", ""),
    ],
)
def test_the_place_of_a_conversation(text: str, place: str) -> None:
    assert place_of(text) == place


def test_spans_begin_where_tokens_may_change() -> None:
    """Every beginning that parts from an expected one, parts in the first line of a span."""
    tokenizer = load_tokenizer(BUNDLED / TARGET)
    for client, shape in AGENTS.items():
        moments = [
            Moment(datetime(2026, 11, day, 9), folder, session)
            for day in (28, 30)
            for session, folder in enumerate(FOLDERS)
        ]
        came = [
            Known("m", shape(moment), 1, client, moment.at.timestamp())
            for moment in reversed(moments)
        ]
        later = [shape(Moment(datetime(2026, 12, 1, 9), folder, 2)) for folder in FOLDERS]
        for one in foresee(came, NOON):
            tokenized = tokenize(tokenizer, CONTEXT, one)
            for other in later:
                shared = shared_length(tokenized.tokens, other.tokens(tokenizer, CONTEXT))
                assert shared == len(tokenized.tokens) or any(
                    0 <= shared - span < LINE_TOKENS for span in tokenized.spans
                )
