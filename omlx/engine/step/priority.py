"""Priority: admission, displacement of rows, and the order of prompts. Pure Python.

A lower number is more urgent. Rows give way to more urgent requests and continue afterwards from
their own tokens. After `STARVATION_S` beside more urgent requests, a request is admitted next, and
keeps the row for `QUANTUM_S`. A row of that time pays for that wait, and a shorter one for a part.

Prompts of equal priority are read by virtual finish time, as in weighted fair queueing: a short
prompt passes a long prompt, and each ends no later than with equal shares. A row that has begun
pauses for prompts that came before: for each up to as many tokens as the row's prompt had, so
that rows decode together that with equal shares had begun together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from itertools import groupby
from typing import Final

from omlx.engine.step.row import Row, Status
from omlx.engine.types import HELD

STARVATION_S: Final = 30.0
"""Seconds without a row, after which a request precedes more urgent ones."""

QUANTUM_S: Final = 15.0
"""Seconds for which such a request keeps the row."""

MAX_JOINT: Final = 4096
"""Tokens of prompts that a row waits for, at most — behind longer ones little is gained."""


def most_urgent(waiting: Sequence[Row], running: Iterable[Row]) -> Row:
    """Return the most urgent request; of several, of the group with the fewest rows."""
    counts = Counter(row.request.group for row in running)

    def rank(row: Row) -> tuple[int, bool, int]:
        return row.request.priority, not row.restarts, counts[row.request.group]

    return min(waiting, key=rank)


def starved(waiting: Sequence[Row], running: Iterable[Row], now: float) -> Row | None:
    """Return the starving request of longest wait, unless another has a row.

    It waits beside more urgent ones, or has given way to them.
    """
    urgent = min(row.request.priority for row in waiting)
    late = [
        row
        for row in waiting
        if (row.displaced or row.request.priority > urgent)
        and now - row.waiting_since >= STARVATION_S
    ]
    if not late or any(row.kept_until > now for row in running):
        return None
    return min(late, key=lambda row: row.waiting_since)


def wait_begins(row: Row, now: float) -> float:
    """Return the beginning of a displaced row's wait.

    Unpaid seconds of earlier waits lie before `now`.
    """
    waited, ran = row.admitted_at - row.waiting_since, now - row.admitted_at
    unpaid = max(0.0, waited - ran * STARVATION_S / QUANTUM_S)
    return now - min(unpaid, 2 * STARVATION_S)  # else one long wait is paid for minutes


def least_urgent(running: Sequence[Row], priority: int, now: float) -> Row | None:
    """Return the row to give way to a request of `priority`: of several, the newest."""
    rows = [
        row
        for row in reversed(running)
        if row.request.priority > priority and row.may_give_way and row.kept_until <= now
    ]
    return max(rows, key=lambda row: row.request.priority, default=None)


class PromptOrder:
    """Order of prompts by priority, then by virtual finish time in tokens."""

    def __init__(self) -> None:
        self._virtual = 0.0
        self._read = 0  # tokens of all prompts
        self._steps = 0  # with prompts, since less urgent prompts were read

    def enter(self, row: Row, running: Iterable[Row]) -> float:
        """Return the finish time of a new row. Prompts of a request follow each other."""
        group = row.request.group
        siblings = [
            other.finish_tag
            for other in running
            if group and other.request.group == group and other.status is Status.PREFILL
        ]
        return max([self._virtual, *siblings]) + row.pending

    def read(self, tokens: int, prompts: int) -> None:
        """Advance by `tokens` of a prompt, among several."""
        self._virtual += tokens / max(1, prompts)
        self._read += tokens

    def joint_until(self, row: Row, running: Iterable[Row]) -> int:
        """Return how many tokens of prompts are read when a row that begins waits no longer."""
        unread, priority = (Status.WAITING, Status.PREFILL), row.request.priority
        equal = [other for other in running if other.request.priority == priority]
        prompts = sum(other.status in unread for other in equal)
        return self._read + min(MAX_JOINT, (row.prompt_len - row.cached) * prompts)

    def joint(self, prompt: Row, begun: Iterable[Row]) -> int:
        """Return how many tokens of a prompt to read before rows that have begun continue."""
        return min(self._patience(row, prompt) for row in begun)

    def _patience(self, row: Row, prompt: Row) -> int:
        equal = row.request.priority == prompt.request.priority
        if not equal or row.clock.first_token < prompt.clock.admitted:
            return 0
        return max(0, row.joint_until - self._read)

    def planned(self, running: Iterable[Row], read: Set[int]) -> None:
        """Note a step that reads the prompts of the rows `read`."""
        if read:
            first, *later = _by_priority(running)
            waits = later and read <= {row.id for row in first}
            self._steps = self._steps + 1 if waits else 0

    def first(self, running: Iterable[Row]) -> list[Row]:
        """Return the prompts of the most urgent rows, for the next step.

        After `HELD` steps, those of the next priority come before them.
        """
        groups = _by_priority(running)
        if len(groups) > 1 and self._steps >= HELD:
            return [*groups[1], *groups[0]]
        return groups[0] if groups else []


def _by_priority(running: Iterable[Row]) -> list[list[Row]]:
    """Return rows whose prompt can be read, by priority and then in order."""
    rows = [row for row in running if row.status is Status.PREFILL and not row.restoring]
    rows.sort(key=lambda row: (row.request.priority, row.finish_tag))
    return [list(group) for _, group in groupby(rows, lambda row: row.request.priority)]
