"""Minutes of the last day and steps of a stream: tokens are summed, a bounded time is kept."""

from __future__ import annotations

import asyncio

from omlx.telemetry.usage import MAX_MINUTES, MINUTE_S, STEP_S, Span, Timeline
from tests.clock import Clock


def test_a_minute_has_all_tokens_and_the_highest_memory() -> None:
    clock = Clock(6_000.0)
    minutes = Timeline(clock, MINUTE_S, MAX_MINUTES)
    minutes.add(5, used_bytes=100)
    clock.now += 59
    minutes.add(2, used_bytes=40)
    clock.now += 1
    minutes.add(used_bytes=70)
    assert minutes.since(0) == [Span(6_000, 7, used_bytes=100), Span(6_060, used_bytes=70)]
    assert minutes.since(6_001) == [Span(6_060, used_bytes=70)]


def test_heat_is_noted_until_it_is_not_known() -> None:
    minutes, answers = Timeline(Clock(6_000.0), MINUTE_S, MAX_MINUTES), iter([None])
    asyncio.run(minutes.watch_heat(lambda: next(answers)))
    assert minutes.since(0) == []
    for throttled in (False, True, False):
        minutes.add(throttled=throttled)
    assert minutes.since(0) == [Span(6_000, throttled=True)]


def test_a_day_is_kept() -> None:
    clock = Clock(6_000.0)
    minutes = Timeline(clock, MINUTE_S, MAX_MINUTES)
    for _ in range(MAX_MINUTES + 9):
        minutes.add(1)
        clock.now += MINUTE_S
    assert len(minutes.since(0)) == MAX_MINUTES


def test_tokens_within_a_step_are_summed_and_silence_adds_no_step() -> None:
    clock = Clock(6_000.0)
    timeline = Timeline(clock)
    timeline.add(3, 1)
    clock.now += STEP_S - 0.1
    timeline.add(2, 2)
    clock.now += 10 * STEP_S
    timeline.add(1, 0)
    first = 6_000 // STEP_S * STEP_S
    assert timeline.since(0) == [Span(first, 5, 3), Span(first + 10 * STEP_S, 1, 0)]
    assert timeline.since(first + 1) == [Span(first + 10 * STEP_S, 1, 0)]


def test_it_is_bounded_and_survives_a_clock_that_is_set_back() -> None:
    clock = Clock(6_000.0)
    timeline = Timeline(clock, kept=3)
    for _ in range(10):
        timeline.add(1, 0)
        clock.now += STEP_S
    assert len(timeline.since(0)) == 3
    clock.now -= 3600
    timeline.add(7, 0)
    steps = timeline.since(0)
    assert [step.tokens for step in steps] == [1, 1, 8]
    assert sorted(step.at for step in steps) == [step.at for step in steps]
