"""Minutes of the last day: tokens are summed, memory is the highest, a day is kept."""

from __future__ import annotations

import asyncio

from omlx.telemetry.usage import MAX_MINUTES, MINUTE_S, Minute, Minutes


class Clock:
    now = 6_000.0

    def __call__(self) -> float:
        return self.now


def test_a_minute_has_all_tokens_and_the_highest_memory() -> None:
    clock = Clock()
    minutes = Minutes(clock)
    minutes.add(5, 100)
    clock.now += 59
    minutes.add(2, 40)
    clock.now += 1
    minutes.add(used_bytes=70)
    assert minutes.since(0) == [Minute(6_000, 7, 100), Minute(6_060, 0, 70)]
    assert minutes.since(6_001) == [Minute(6_060, 0, 70)]


def test_heat_is_noted_until_it_is_not_known() -> None:
    minutes, answers = Minutes(Clock()), iter([None])
    asyncio.run(minutes.watch_heat(lambda: next(answers)))
    assert minutes.since(0) == []
    for throttled in (False, True, False):
        minutes.add(throttled=throttled)
    assert minutes.since(0) == [Minute(6_000, throttled=True)]


def test_a_day_is_kept() -> None:
    clock = Clock()
    minutes = Minutes(clock)
    for _ in range(MAX_MINUTES + 9):
        minutes.add(1)
        clock.now += MINUTE_S
    assert len(minutes.since(0)) == MAX_MINUTES
