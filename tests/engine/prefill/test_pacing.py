"""Slices of prompts by time: a decoding row keeps half of its pace beside prompts that come later;
those that came before it are read first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle

import pytest

from omlx.engine.speculation.cost_model import LatencyTable
from omlx.engine.step.priority import FIRST, MAX_JOINT, MAX_OWED_S, SMALLEST, PrefillPacing
from omlx.engine.types import URGENCY_RATIO, Limits
from tests.engine.device import Desk, ask

PAUSE_S = 0.2
LIMITS = Limits(context_length=200_000, prefill_slice=256, pause_s=PAUSE_S)
BACKGROUND = 10


@dataclass(frozen=True)
class Machine:
    """Seconds of passes: `step_s` to read the weights, `token_s` to compute a prompt's token."""

    step_s: float
    token_s: float

    def seconds(self, rows: int, tokens: int) -> float:
        return (self.step_s if rows else 0.0) + (self.slice_s(tokens) if tokens else 0.0)

    def slice_s(self, tokens: int) -> float:
        return max(self.step_s, self.token_s * tokens)


MACHINES = {
    "tiny": Machine(0.002, 0.00002),
    "cpu": Machine(0.03, 0.0025),
    "8b": Machine(0.02, 0.0015),
    "70b": Machine(0.13, 0.012),
    "huge": Machine(0.5, 0.04),
}


@dataclass
class Drive:
    """A scheduler whose steps take what a machine says. `log`: rows, tokens, seconds by step;
    `held`: tokens by step, of prompts for which rows wait without being owed time.
    """

    limits: Limits
    machine: Machine

    def __post_init__(self) -> None:
        self.log: list[tuple[int, int, float]] = []
        self.held: list[int] = []
        self.now = 1.0
        self.desk = Desk(self.limits, clock=lambda: self.now)

    def step(self) -> None:
        plan = self.desk.step()
        if plan is None:
            return
        tokens = plan.prompt_tokens
        rows = sum(window.sample for window in plan.windows)
        seconds = self.machine.seconds(rows, tokens)
        self.log.append((rows, tokens, seconds))
        self.held.append(tokens * self.desk.scheduler.planner.pacing.holding)
        self.now += seconds
        self.desk.scheduler.planner.observe(plan, seconds)

    def until(self, reached: Callable[[], object]) -> Drive:
        while not reached():
            self.step()
        return self

    def until_first(self, name: str) -> float:
        """Return the seconds to the first token of a request."""
        start = len(self.log)
        self.until(lambda: self.desk.said(name))
        return sum(seconds for *_, seconds in self.log[start:])


def drive(machine: Machine, **more: object) -> Drive:
    return Drive(replace(LIMITS, **more), machine)


def decoding(driven: Drive, name: str, **more: object) -> Drive:
    driven.desk.submit(ask(name, max_tokens=100_000, **more))
    return driven.until(lambda: len(driven.desk.said(name)) >= 8)


@pytest.mark.parametrize("name", MACHINES)
def test_a_stream_keeps_half_of_its_pace_beside_a_long_prompt(name: str) -> None:
    machine = MACHINES[name]
    driven = decoding(drive(machine), "stream")
    driven.desk.submit(ask("long", prompt=6000))
    start, before = len(driven.log), len(driven.desk.said("stream"))
    seconds = driven.until_first("long")
    said = len(driven.desk.said("stream")) - before
    assert said >= 0.5 * (seconds - PAUSE_S) / machine.step_s - 2  # the last slice is owed
    alone = machine.slice_s(6000) + machine.step_s
    assert seconds <= 2.2 * alone + 3 * max(PAUSE_S, machine.step_s)
    assert not any(rows and tokens for rows, tokens, _ in driven.log[start:]), "timed alone"
    slices = [s for _, tokens, s in driven.log[start + 8 :] if tokens]
    assert max(slices) <= 2 * max(PAUSE_S, machine.step_s) + machine.step_s
    settled = [s for _, tokens, s in driven.log[40:] if tokens]
    least = machine.slice_s(SMALLEST)
    assert max(settled) <= max(1.1 * max(PAUSE_S, machine.step_s), least) + 1e-9


@pytest.mark.parametrize("name", MACHINES)
def test_prompts_that_come_together_are_read_before_their_answers_go_on(name: str) -> None:
    """Each first token comes as soon as its prompt is read; then all decode in one batch."""
    machine, asked = MACHINES[name], [ask(f"b{i}", prompt=1000, max_tokens=30) for i in range(4)]
    driven = drive(machine)
    driven.desk.submit(asked[0])
    driven.step()
    driven.desk.submit(*asked[1:])
    for i, one in enumerate(asked, 1):
        driven.until_first(one.id)
        first = i * (machine.slice_s(999) + machine.step_s)
        assert sum(seconds for *_, seconds in driven.log[:-1]) == pytest.approx(first)
    driven.until(lambda: len(driven.desk.finished) >= 4)
    decoded = [rows for rows, tokens, _ in driven.log if rows]
    assert decoded == [1, 1, 1, 1, *[4] * 29]
    driven.desk.proven()


@pytest.mark.parametrize(("prompt", "others"), [(60, 1), (200, 2)])
def test_a_row_waits_for_each_prompt_of_its_burst_as_long_as_its_own_took(
    prompt: int, others: int
) -> None:
    machine = MACHINES["cpu"]
    driven = drive(machine)
    driven.desk.submit(ask("short", prompt=prompt, max_tokens=10_000))
    driven.step()
    driven.desk.submit(*(ask(f"long{i}", prompt=6000) for i in range(others)))
    driven.until_first("short")
    start, before = len(driven.log) - 1, len(driven.desk.said("short"))
    seconds = driven.until_first("long0")
    held = sum(driven.held[start:])
    assert held == prompt * others
    said = len(driven.desk.said("short")) - before
    shared_s = seconds - machine.token_s * held - PAUSE_S
    assert said >= 0.5 * shared_s / machine.step_s - 2


def test_prompts_that_had_no_row_yet_are_no_part_of_a_burst() -> None:
    driven = drive(MACHINES["cpu"], max_rows=2)
    driven.desk.submit(ask("stream", prompt=500, max_tokens=10_000))
    driven.desk.submit(*(ask(f"{i}", prompt=500, max_tokens=3) for i in range(4)))
    driven.until_first("0")
    start = len(driven.log)
    driven.until_first("3")
    assert not sum(driven.held[start:])


def test_rows_wait_no_longer_than_it_pays() -> None:
    driven = drive(MACHINES["cpu"])
    driven.desk.submit(ask("first", prompt=9000, max_tokens=10_000), ask("second", prompt=9000))
    driven.until_first("second")
    assert sum(driven.held) == MAX_JOINT


def test_patience_with_a_burst_is_none_with_a_later_prompt() -> None:
    """Of 2,000 tokens for which the first row might wait, the other prompt took 100."""
    driven = drive(MACHINES["cpu"])
    driven.desk.submit(ask("first", prompt=2000, max_tokens=10_000))
    driven.step()
    driven.desk.submit(ask("second", prompt=100, max_tokens=1))
    driven.until_first("first")
    driven.until_first("second")
    driven.step()
    start = len(driven.log)
    driven.desk.submit(ask("late", prompt=3000))
    driven.until_first("late")
    assert not sum(driven.held[start:])


def test_the_first_slice_follows_from_the_cost_model() -> None:
    table = LatencyTable()
    for _ in range(4):
        table.learn(64, 64, 0.1)
    assert PrefillPacing(LIMITS, table).tokens(0) == 128
    for _ in range(4):
        table.learn_chunk(1024, 1024, 20.0)
    assert 16 <= PrefillPacing(LIMITS, table).tokens(0) <= 128
    assert PrefillPacing(LIMITS, LatencyTable()).tokens(0) == FIRST


def test_a_short_end_makes_no_slice_grow_and_a_slow_one_halves_the_next_at_most() -> None:
    pacing = PrefillPacing(LIMITS, LatencyTable())
    for _ in range(12):
        pacing.observe(pacing.tokens(0), 0.001 * pacing.tokens(0))
    known = pacing.tokens(0)
    pacing.observe(20, 0.0001)
    assert pacing.tokens(0) == known
    pacing.observe(known, 30.0)
    assert pacing.tokens(0) >= known // 2 - 32


def test_a_machine_that_slept_owes_no_more_than_seconds() -> None:
    pacing = PrefillPacing(LIMITS, LatencyTable())
    pacing.planned(1, 32)
    pacing.observe(32, 10_000.0)
    steps = 0
    while not pacing.due:
        pacing.planned(1, 0)
        pacing.observe(0, 0.1)
        steps += 1
    assert steps <= MAX_OWED_S / 0.1 + 1


@pytest.mark.parametrize("uneven", [(0.07,), (0.28, 0.02), (0.02, 0.28), (0.3, 0.02, 0.02, 0.09)])
def test_decoding_rows_get_half_of_the_time_however_uneven_their_steps_are(
    uneven: tuple[float, ...],
) -> None:
    """Each is planned before the one in flight is measured; a step with a slice runs alone."""
    pacing, lengths = PrefillPacing(LIMITS, LatencyTable()), cycle(uneven)
    decoded = read = 0.0
    flying = 0
    for _ in range(600):
        if flying and (pacing.due or flying == 2):
            decoded += (seconds := next(lengths))
            pacing.observe(0, seconds)
            flying -= 1
        elif pacing.due:
            tokens = pacing.tokens(0)
            pacing.planned(1, tokens)
            pacing.observe(tokens, 0.005 * tokens)
            read += 0.005 * tokens
        else:
            pacing.planned(1, 0)
            flying += 1
    assert 0.9 <= decoded / read <= 1.1


def test_without_a_pause_slices_have_a_fixed_length() -> None:
    driven = decoding(drive(MACHINES["cpu"], pause_s=None, prefill_slice=24), "stream")
    start = len(driven.log)
    driven.desk.submit(ask("long", prompt=400))
    driven.until_first("long")
    read = [tokens for _, tokens, _ in driven.log[start:] if tokens]
    assert set(read[:-1]) == {24}


@pytest.mark.parametrize("rows", [1, 3])
def test_less_urgent_rows_wait_while_a_prompt_is_read_but_not_for_good(rows: int) -> None:
    machine = MACHINES["8b"]
    driven = drive(machine, prefill_chunk=512)
    for name in ("slow", "other", "third")[:rows]:
        decoding(driven, name, priority=BACKGROUND)
    driven.desk.submit(ask("typed", prompt=40_000, max_tokens=5))
    start, before = len(driven.log), len(driven.desk.said("slow"))
    seconds = driven.until_first("typed")
    steps = len(driven.desk.said("slow")) - before
    assert steps >= 1
    assert steps * machine.step_s <= seconds / URGENCY_RATIO + 2 * machine.step_s
    alone = sum(machine.slice_s(tokens) for _, tokens, _ in driven.log[start:] if tokens)
    assert seconds <= 1.1 * alone


def test_less_urgent_rows_wait_for_a_first_token_too_but_not_for_good() -> None:
    driven = drive(MACHINES["8b"])
    for name in ("slow", "other"):
        decoding(driven, name, priority=BACKGROUND)
    start, before = len(driven.log), len(driven.desk.said("slow"))
    for i in range(60):
        driven.desk.submit(ask(f"typed{i}", prompt=20, max_tokens=1))
        driven.until_first(f"typed{i}")
    alone = sum(rows == 1 and not tokens for rows, tokens, _ in driven.log[start:])
    assert alone >= 50
    steps = len(driven.desk.said("slow")) - before
    typed_s = sum(seconds for rows, _, seconds in driven.log[start:] if rows < 2)
    assert steps >= typed_s / (URGENCY_RATIO * MACHINES["8b"].step_s) - 1


@pytest.mark.parametrize(("prompts", "steps"), [(1, 12), (2, 40)])
def test_prompts_in_the_background_are_read_in_passes_that_delay_others_little(
    prompts: int, steps: int
) -> None:
    machine = MACHINES["cpu"]
    driven = drive(machine)
    slow = (ask(f"slow{i}", prompt=2000, priority=BACKGROUND) for i in range(prompts))
    driven.desk.submit(*slow)
    for _ in range(steps):
        driven.step()
    assert bool(driven.desk.said("slow0")) == (prompts > 1)
    assert all(seconds <= 1.1 * PAUSE_S for *_, seconds in driven.log[3:])
    driven.desk.submit(ask("typed", prompt=100, max_tokens=1))
    assert driven.until_first("typed") <= machine.slice_s(100) + 2 * PAUSE_S + machine.step_s


def test_a_changed_number_of_rows_is_measured_again() -> None:
    machine = MACHINES["cpu"]
    driven = decoding(drive(machine), "a")
    driven = decoding(driven, "b")
    driven.desk.submit(ask("long", prompt=3000))
    before = [len(driven.desk.said(name)) for name in "ab"]
    seconds = driven.until_first("long")
    for name, said in zip("ab", before, strict=True):
        assert (len(driven.desk.said(name)) - said) / seconds >= 0.48 / machine.step_s


def test_answers_beside_a_prompt_are_those_of_requests_alone() -> None:
    driven = decoding(drive(MACHINES["cpu"]), "stream")
    asked = (ask(f"p{i}", prompt=700 + i, max_tokens=9, priority=i % 3) for i in range(5))
    driven.desk.submit(*asked)
    driven.until(lambda: len(driven.desk.finished) >= 5)
    driven.desk.proven(*(f"p{i}" for i in range(5)))


def test_slices_are_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the launch of a step waits for the one before, whose time it would take over."""
    driven = decoding(drive(MACHINES["cpu"]), "stream")
    scheduler = driven.desk.scheduler
    plan, overlapped = scheduler.plan, []

    def watched() -> object:
        before, step = scheduler._in_flight, plan()
        if before is not None and step is not None:
            overlapped.append(before.prompt_tokens + step.plan.prompt_tokens)
        return step

    monkeypatch.setattr(scheduler, "plan", watched)
    driven.desk.submit(ask("long", prompt=2000))
    driven.until_first("long")
    assert overlapped, "steps without slices overlap"
    assert set(overlapped) == {0}
