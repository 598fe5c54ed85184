"""Priority: admission, displacement, the order and the pace of prompts. Pure Python.

A lower number is more urgent. Rows give way to more urgent requests and continue afterwards from
their own tokens. After `STARVATION_S` beside more urgent requests, a request is admitted next, and
keeps the row for `QUANTUM_S`. A row of that time pays for that wait, and a shorter one for a part.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence, Set
from itertools import groupby
from statistics import median_low
from typing import Final

from omlx.engine.speculation.cost_model import LatencyTable
from omlx.engine.step.row import Row, Status
from omlx.engine.types import URGENCY_RATIO, Limits

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
    """Order of prompts by priority, then by virtual finish time in tokens (weighted fair queueing).

    A short prompt passes a long prompt, and each ends no later than with equal shares. A row that
    has begun pauses for prompts that came before: for each up to as many tokens as the row's prompt
    had, so that rows decode together that with equal shares had begun together.
    """

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
        """Return the total of read prompt tokens up to which a row that begins pauses."""
        unread, priority = (Status.WAITING, Status.PREFILL), row.request.priority
        equal = [other for other in running if other.request.priority == priority]
        prompts = sum(other.status in unread for other in equal)
        return self._read + min(MAX_JOINT, (row.prompt_len - row.cached) * prompts)

    def joint(self, prompt: Row, begun: Iterable[Row]) -> int:
        """Return how many tokens of a prompt to read before rows that have begun continue."""
        return min(self._tokens_to_wait(row, prompt) for row in begun)

    def _tokens_to_wait(self, row: Row, prompt: Row) -> int:
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

        After `URGENCY_RATIO` steps, those of the next priority come before them.
        """
        groups = _by_priority(running)
        if len(groups) > 1 and self._steps >= URGENCY_RATIO:
            return [*groups[1], *groups[0]]
        return groups[0] if groups else []


def _by_priority(running: Iterable[Row]) -> list[list[Row]]:
    """Return rows whose prompt can be read, by priority and then in order."""
    rows = [row for row in running if row.status is Status.PREFILL and not row.restoring]
    rows.sort(key=lambda row: (row.request.priority, row.finish_tag))
    return [list(group) for _, group in groupby(rows, lambda row: row.request.priority)]


FIRST: Final = 32
"""Tokens of the first slice of a model of which nothing is measured."""

SMALLEST: Final = 16
"""Tokens — shorter passes read all weights for little."""

STEADY: Final = 2.0
"""Ratio of successive slices: a single time may be an outlier."""

TILE: Final = 32
"""Tokens of a tile of matrix products: longer slices are multiples."""

MAX_OWED_S: Final = 5.0
"""Seconds — sleep of the machine owes nothing."""

SAMPLES: Final = 5
"""Steps whose median counts: a busy machine delays single steps."""

UNKNOWN_STEP_S: Final = 0.05
"""Seconds of a decode step, while none is measured."""


class PrefillPacing:
    """Time of a model's prompts, beside decoding rows and before them.

    A slice has a step of its own, so that it is timed alone, however uneven decode steps are
    (drafts, overlapping steps of a CPU). It takes `pause_s`, or a longer decode step; afterwards
    the rows decode as long, and so keep half of their pace. The size in tokens follows from earlier
    slices, at first from the cost model. Rows beside a more urgent prompt get a twentieth of the
    time (`URGENCY_RATIO`).

    Without `pause_s` in `limits` nothing is timed. `table` has the seconds of earlier passes.
    """

    def __init__(self, limits: Limits, table: LatencyTable) -> None:
        self._longest = limits.prefill_chunk
        self._pause_s = limits.pause_s
        self._table = table
        self._tokens: float | None = None  # of a slice that takes `_target_s`
        self._token_s: deque[float] = deque(maxlen=SAMPLES)  # of a prompt's token, in slices
        self._steps: deque[float] = deque(maxlen=SAMPLES)  # seconds, without prompts
        self._newest_s = 0.0  # seconds of the newest of `_steps`
        self._step_s = 0.0  # median of `_steps`; 0: not measured
        self._rows = 0  # rows that decode in a step of `_steps`
        self._owed_s = 0.0  # to decoding rows for slices, as measured
        self._planned: deque[tuple[int, float]] = deque()  # rows, and what will be owed to them
        self._held_s = 0.0  # since less urgent rows decoded last
        self.holding = False  # whether less urgent rows wait for the newest step

    @property
    def timed(self) -> bool:
        return self._pause_s is not None

    @property
    def due(self) -> bool:
        """Whether decoding rows have had their share since the last slice."""
        return self._owed_s + sum(owed_s for _, owed_s in self._planned) <= 0.0

    @property
    def holds(self) -> bool:
        """Whether less urgent rows wait for a prompt, or its first token, in the next step."""
        return self.timed and self._held_s < URGENCY_RATIO * (self._step_s or UNKNOWN_STEP_S)

    def tokens(self, context: int) -> int:
        """Return the tokens of the next slice, behind `context` others."""
        if self._tokens is None:
            self._tokens = self._expected(context)
        tokens = max(SMALLEST, min(int(self._tokens), self._longest))
        return tokens if tokens < 2 * TILE else tokens - tokens % TILE

    def planned(self, rows: int, tokens: int) -> None:
        """Note a step in which `rows` decode, or wait for `tokens` of prompts."""
        owed_s = 0.0
        if rows and not self.holding:
            if not tokens:
                self._held_s = 0.0
            if rows != self._rows:
                self._rows, self._step_s, self._newest_s = rows, 0.0, 0.0
                self._steps.clear()
            slice_s = self._target_s * tokens / (self._tokens or FIRST)  # as expected
            owed_s = slice_s if tokens else -self._step_s
        if self.timed:
            self._planned.append((rows, owed_s))

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from the `seconds` of the oldest step planned, with `tokens` of prompts."""
        if self._pause_s is None:
            return
        rows = self._planned.popleft()[0] if self._planned else 0
        if self.holding:
            self._held_s += seconds
        if not tokens:
            self._observe_decode(rows, seconds)
            return
        if rows:
            self._owe(seconds)
        self._learn(tokens, seconds)

    def discard(self) -> None:
        """Expect nothing of steps that failed: they are never observed."""
        self._planned.clear()

    @property
    def _target_s(self) -> float:
        return max(self._pause_s or 0.0, self._step_s)

    def _owe(self, seconds: float) -> None:
        # Less than nothing is owed after a long step: overlapping steps of a CPU are uneven.
        self._owed_s = min(max(-self._target_s, self._owed_s + seconds), MAX_OWED_S)

    def _observe_decode(self, rows: int, seconds: float) -> None:
        if not rows or rows != self._rows:
            return
        self._owe(-seconds)
        # A launch on a CPU waits for the step before: of two that overlap, either seems long.
        self._steps.append((seconds + self._newest_s) / 2 if self._newest_s else seconds)
        self._newest_s, self._step_s = seconds, median_low(self._steps)

    def _learn(self, tokens: int, seconds: float) -> None:
        if tokens < SMALLEST:
            return
        known = self._tokens or tokens  # of a longer pass, which ran without decoding rows
        if tokens < known / 2 and tokens * self._target_s > known * seconds:
            return  # the short end of a prompt proves little
        self._token_s.append(seconds / tokens)
        fitting = self._target_s / median_low(self._token_s)
        least = known / STEADY if self._tokens else 0.0
        self._tokens = min(max(fitting, least), STEADY * known, self._longest)

    def _expected(self, context: int) -> float:
        """Return the tokens of a first slice, at the pace of the widest measured pass."""
        for width in (256, 64, 16):
            seconds = self._table.seconds(width, context + width)
            if seconds and self._table.reaches(width):
                return min(width * self._target_s / seconds, STEADY * width)
        return FIRST
