"""Foresight: beginnings to expect, made of earlier ones.

Programs repeat a beginning but for some spans: date, working directory, git status, tools. Expected
is the newest beginning of each directory with today's date, and with the newest tools after an
update. Wrong guesses cost idle time only: prefixes are found by their tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import Any, Final, TypeAlias

from omlx.engine.prefix.tree import shared_length
from omlx.server.beginnings.beginning import Beginning, place_of
from omlx.server.beginnings.store import RETURNS, Known

Tools: TypeAlias = tuple[Mapping[str, Any], ...]

DAY_S: Final = 86400.0

MAX_ORDERS: Final = 2
"""Orders of equal tools — servers of tools connect in any order."""

LATE_DAYS: Final = 3
"""Days — later turns of a conversation repeat the date of the first."""

LABEL_CHARACTERS: Final = 80
"""Characters — longer lines are split before a changed word."""

_WEEKDAYS: Final = ("", "%a ", "%a, ", "%A ", "%A, ")


@dataclass(frozen=True, slots=True)
class Expected:
    """A beginning expected next, made of `known`.

    `spans` are positions in the system text, in characters: starts of changing spans, in order.
    """

    known: Known
    beginning: Beginning
    spans: tuple[int, ...] = ()

    @property
    def foreseen(self) -> bool:
        """Whether no request has had this text yet."""
        return self.beginning.key != self.known.beginning.key


def foresee(known: Sequence[Known], now: float) -> list[Expected]:
    """Return the beginnings to expect at `now` (seconds since the epoch), most recent first."""
    expected: dict[str, Expected] = {}
    for family in _families(known):
        if sum(one.conversations for one in family) >= RETURNS:
            for one in _expected(family, now):
                expected.setdefault(one.beginning.key, one)
    return sorted(expected.values(), key=lambda one: one.known.used_at, reverse=True)


def program(client: str) -> str:
    """Return a program's name, from a User-Agent."""
    return client.partition(" ")[0].partition("/")[0]


def _families(known: Sequence[Known]) -> list[list[Known]]:
    """Group beginnings of a program with equal tools or half of their text in common."""
    families: list[list[Known]] = []
    for one in known:
        for family in families:
            if _related(family[0], one):
                family.append(one)
                break
        else:
            families.append([one])
    return families


def _related(left: Known, right: Known) -> bool:
    if program(left.client) != program(right.client):
        return False
    ours, theirs = left.beginning, right.beginning
    if ours.tools and ours.tools == theirs.tools:
        return True
    shortest = min(len(ours.system), len(theirs.system))
    return 2 * shared_length(ours.system, theirs.system) > shortest


def _expected(family: Sequence[Known], now: float) -> list[Expected]:
    """Return the beginnings to expect of a family, ordered newest first."""
    current = [with_date(one.beginning, one.used_at, now) for one in family]
    expected, places = list[Expected](), set[str]()
    for one, beginning in zip(family, current, strict=True):
        place = place_of(beginning.system)
        if place in places or (not place and one.conversations < RETURNS):
            continue
        if place:
            places.add(place)
        spans = _spans(beginning, current, now)
        for tools in _tool_lists(one, family):
            expected.append(Expected(one, replace(beginning, tools=tools), spans))
    return expected


def _tool_lists(one: Known, family: Sequence[Known]) -> list[Tools]:
    """Return the tools to expect: earlier ones, or the newest in their latest orders."""
    lists = [other.beginning.tools for other in family]
    own, newest = one.beginning.tools, lists[0]
    last_used = max(other.used_at for other in family if other.beginning.tools == own)
    first_used = min(other.used_at for other in family if other.beginning.tools == newest)
    if not _reordered(own, newest) and last_used >= first_used:
        return [own]
    orders: list[Tools] = []
    for tools in lists:
        if _reordered(tools, newest) and tools not in orders:
            orders.append(tools)
    return orders[:MAX_ORDERS]


def _reordered(left: Tools, right: Tools) -> bool:
    return len(left) == len(right) and all(tool in right for tool in left)


def _spans(beginning: Beginning, others: Sequence[Beginning], now: float) -> tuple[int, ...]:
    """Return where the text parts from the others, all of today, and from tomorrow's."""
    text, tomorrow = beginning.system, with_date(beginning, now, now + DAY_S)
    others = (*others, tomorrow)
    lengths = {shared_length(text, other.system) for other in others if other.system != text}
    return tuple(sorted({_start(text, length) for length in lengths} - {0}))


def _start(text: str, at: int) -> int:
    """Return where the line of a changed word begins; in a long line, a word before."""
    line = text.rfind("\n", 0, at) + 1
    if at - line <= LABEL_CHARACTERS:
        return line
    return max(line, text.rfind(" ", 0, at - LABEL_CHARACTERS) + 1)


def with_date(beginning: Beginning, used_at: float, now: float) -> Beginning:
    """Return a beginning with the date of `now` instead of the date of use.

    Times are seconds since the epoch; dates are local, or UTC's. `used_at` may be a later turn.
    """
    record = json.dumps(asdict(beginning), ensure_ascii=False)
    day, today = date.fromtimestamp(used_at), date.fromtimestamp(now)
    days = [(day, today), (_utc(used_at), _utc(now))]
    days += [(day - timedelta(late), today) for late in range(1, LATE_DAYS + 1)]
    for then, then_today in days:
        if any(text in record for text in _written(then)):
            return beginning if then == then_today else _replaced(record, then, then_today)
    return beginning


def _replaced(record: str, then: date, today: date) -> Beginning:
    texts: dict[str, str] = {}
    pairs = [*zip(_written(then), _written(today), strict=True)]
    pairs += zip(_months(then), _months(today), strict=True)
    for old, new in pairs:
        if old in record:
            texts.setdefault(old, new)
    longest_first = sorted(texts, key=len, reverse=True)
    pattern = rf"(?<!\d)(?:{'|'.join(map(re.escape, longest_first))})(?!\d)"
    return Beginning.read(json.loads(re.sub(pattern, lambda found: texts[found[0]], record)))


def _utc(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()


def _written(day: date) -> list[str]:
    """Return the ways in which programs write a date, of equal ones the usual first."""
    month, number = day.month, day.day
    forms = [f"{month}/{number}/%Y", f"{number}/{month}/%Y", f"{number}.{month}.%Y"]
    forms += ["%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y"]
    for weekday, name in product(_WEEKDAYS, ("%b", "%B")):
        forms.append(f"{weekday}{name} %d %Y")  # as JavaScript writes it, before `Nov 1 2026`
        for shown in (str(number), "%d"):
            forms += [f"{weekday}{name} {shown}, %Y", f"{weekday}{shown} {name} %Y"]
        forms.append(f"{weekday}{name} {number} %Y")
    return [day.strftime(form) for form in forms]


def _months(day: date) -> list[str]:
    return [day.strftime("%b %Y"), day.strftime("%B %Y")]
