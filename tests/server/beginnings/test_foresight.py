"""What is expected of beginnings that came: dates, directories, tools, and where they change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from omlx.models.catalog.discovery import BUNDLED
from omlx.server.beginnings.beginning import Beginning, place_of, shared_length
from omlx.server.beginnings.foresight import (
    DAY_S,
    SETTLED_S,
    Expected,
    foresee,
    foreseen_until,
    with_date,
)
from omlx.server.beginnings.git_status import (
    CHANGED,
    FOLLOWED_S,
    MAX_COMMAND,
    SHOWN,
    TRUNCATED,
    UNCHANGED,
    GitStatus,
    Report,
    left_by,
    with_git_status,
)
from omlx.server.beginnings.prewarmer import tokenize
from omlx.server.beginnings.store import Known
from tests.server.beginnings.agents import (
    AGENTS,
    FIRST_DAY,
    FOLDERS,
    SHOP,
    Moment,
    Work,
    claude_code,
    ran,
    system,
    tools,
    turns,
    wrote,
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


def left(work: Work) -> GitStatus:
    text = f"Working directory: {FOLDERS[0]}\n\nStatus:\n{work.status}\n\nRecent commits:\n"
    return left_by(text + "\n".join(work.log), turns(work))


def test_calls_of_a_session_tell_the_git_status_of_the_next_one() -> None:
    """But for a commit of the user, a program that writes, and an edit of the user."""
    told = []
    for before, after in pairwise(SHOP):
        status = left(before)
        if status == UNCHANGED:
            status = GitStatus(before.status, "\n".join(before.log))
        told.append(status == GitStatus(after.status, "\n".join(after.log)))
    assert told == [True, True, True, False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("status", "call", "expected"),
    [
        ("?? docs/", wrote("Write", "docs/a.md"), ""),  # a new folder is one entry
        ("M  a.py", wrote("Edit", "a.py"), "MM a.py"),
        ("(clean)", wrote("Edit", "../../other.py"), ""),
        ("(clean)", ("Read", {"file_path": f"{FOLDERS[0]}/a.py"}, "text"), ""),
        ("(clean)", ran("git status --short", " M a.py\n?? b.py\n"), "M a.py\n?? b.py"),
        ("M a.py", ran("git status --short", ""), "(clean)"),
        ("M a.py", ran("git status --short", "fatal: not a git repository"), ""),
        ("M a.py\n?? b.py", ran("git commit -am x", "[main 1234567] x"), "?? b.py"),
        ("M a.py\n?? b.py", ran("git add b.py; git commit", "[b 1234567] x"), "M a.py"),
        ("M a.py", ran("git commit -am x", "error: nothing to commit"), ""),
        ("M a.py", ran("git commit -m x; ls -a", "[main 1234567] x"), "M a.py"),
        ("?? docs/", ran("git add docs/ && git commit", "[main 1234567] x"), "(clean)"),
        ("M a.py", ran(f"git commit -am {'x' * MAX_COMMAND}", "[main 1234567] x"), ""),
        ("\n".join(f"M  {n}.py" for n in range(CHANGED + 1)), wrote("Edit", "0.py"), ""),
        (f"M a.py\n ?{TRUNCATED}", wrote("Edit", "b.py"), ""),
        ("## main...origin/main\n M a.py", wrote("Edit", "b.py"), ""),
    ],
)
def test_git_status_after_a_call(status: str, call: Any, expected: str) -> None:
    assert left(Work(status, ("0000000 Begin",), [call])).status == expected


def test_a_session_has_left_its_status_after_a_while() -> None:
    first, second = (Moment(FIRST_DAY, FOLDERS[0], session) for session in (0, 2))
    beginning, at = claude_code(first), FIRST_DAY.timestamp()
    one = Known("m", beginning, 2, CLIENT, at, left_by(beginning.system, turns(first.work)))
    (soon,) = foresee([one], at + SETTLED_S - 1)
    (later,) = foresee([one], at + SETTLED_S)
    assert soon.beginning == beginning
    assert later.beginning == claude_code(second)
    assert later.foreseen
    assert foreseen_until([one], at) == at + SETTLED_S
    assert foreseen_until([one], at + SETTLED_S) == inf


def test_a_reported_status_is_expected_instead_of_the_one_that_calls_tell() -> None:
    first, second = (Moment(FIRST_DAY, FOLDERS[0], session) for session in (0, 2))
    beginning, at = claude_code(first), FIRST_DAY.timestamp()
    one = Known("m", beginning, 2, CLIENT, at, left_by(beginning.system, turns(first.work)))
    told = claude_code(second)

    def expected(now: float, running: bool, reported_at: float, folder: str = FOLDERS[0]) -> Any:
        report = Report(GitStatus("D  a.py", "1234567 By hand"), "side", running, reported_at)
        (found,) = foresee([one], now, {"/other": report, folder: report})
        return found.beginning

    reported = with_git_status(beginning, GitStatus("D  a.py", "1234567 By hand"), "side")
    assert "Current branch: side\n\nStatus:\nD  a.py\n\nRecent" in reported.system
    assert expected(at + 1, running=False, reported_at=at + 1) == reported
    assert expected(at + 1, running=True, reported_at=at + 1) == beginning  # its calls may follow
    assert expected(at + SETTLED_S, running=True, reported_at=at - 1) == reported
    assert expected(at + SETTLED_S, running=False, reported_at=at - FOLLOWED_S - 1) == told
    assert expected(at + SETTLED_S, False, at + 1, FOLDERS[0] + "/src") == told
    report = Report(GitStatus("(clean)"), "main", True, at)
    assert foreseen_until([one], at, {FOLDERS[0]: report}) == at + SETTLED_S


@pytest.mark.parametrize(
    ("own", "status", "written"),
    [
        ("(clean)", "M a.py\n?? b.py", "M a.py\n?? b.py"),
        ("?? c.py", " M a\n" * 500, (" M a\n" * 500)[:SHOWN] + TRUNCATED),
        (f"?? c.py\n??{TRUNCATED}", "?? a.py", "?? a.py"),
        (f"?? c.py\n?? d{TRUNCATED}", "(clean)", "(clean)"),
        ("", "?? a.py", ""),  # no status
    ],
)
def test_a_status_is_written_as_the_program_does(own: str, status: str, written: str) -> None:
    text = "Status:\n{}\n\nRecent commits:\n{}\n\nBe brief."
    beginning = Beginning(system(text.format(own, "")), (), {})
    changed = with_git_status(beginning, GitStatus(status, "1234567 One"))
    assert changed.system == text.format(written, "1234567 One" if written else "")


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
