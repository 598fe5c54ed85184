"""The meter: what is counted, between which moments; answers compared token by token."""

from __future__ import annotations

from math import isnan

import pytest

from omlx.measure import sample as module
from omlx.measure.sample import (
    BUSY_SHARE,
    Meter,
    ProcessorTimes,
    Sample,
    compare,
    first_difference,
    others_since,
    total,
)


def sample(counted: int, seconds: float = 1.0, proposed: int = 0, accepted: int = 0) -> Sample:
    tokens = ((1,) * counted,)
    return Sample(tokens, counted, seconds, seconds / 2, 2 * seconds, proposed, accepted)


def test_the_clock_starts_when_every_row_has_tokens_and_stops_when_one_ends() -> None:
    meter = Meter(2)
    meter.add({0: (1, 2)}, ended=False)
    meter.add({0: (3,), 1: (1,)}, ended=False)
    meter.add({0: (4,), 1: (2, 3)}, ended=False)
    meter.add({0: (5,), 1: (4,)}, ended=True)
    meter.add({1: (5,)}, ended=True)
    measured = meter.sample(proposed=4, accepted=1)
    assert measured.tokens == ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5))
    assert measured.counted == 5
    assert 0 < measured.seconds <= measured.total_s
    assert measured.acceptance_rate == 0.25


def test_a_run_without_a_second_step_counts_nothing() -> None:
    meter = Meter(1)
    meter.add({0: (1,)}, ended=True)
    assert meter.sample().counted == 0
    assert meter.sample().seconds == 0.0
    assert isnan(meter.sample().rate)
    assert meter.sample().acceptance_rate is None


def test_samples_add_up() -> None:
    whole = total([sample(2, 1.0, 4, 1), sample(3, 2.0, 4, 3)])
    assert whole.counted == 5
    assert whole.seconds == 3.0
    assert whole.acceptance_rate == 0.5
    assert whole.total_s == 6.0
    assert [len(tokens) for tokens in whole.tokens] == [2, 3]


def test_first_difference() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


def test_equal_answers_are_counted_and_the_first_difference_is_kept() -> None:
    answers = [("a", (1, 2), (1, 2)), ("b", (1, 2), (1, 3)), ("c", (1,), (2,))]
    exactness = compare(answers)
    assert (exactness.same, exactness.of) == (1, 3)
    assert exactness.first == ("b", 1)
    assert compare(answers[:1]).first is None


read = module.processor_times  # before a fixture of the session hides other programs


def disturbed(share: float) -> Sample:
    return Sample(((1, 2),), 1, 1.0, others_s=2 * share, machine_s=2.0)


def test_other_programs_took_what_is_neither_idle_nor_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([ProcessorTimes(100.0, 50.0, 5.0), ProcessorTimes(108.0, 51.0, 8.0)])
    monkeypatch.setattr(module, "processor_times", lambda: next(times))
    meter = Meter(1)
    meter.add({0: (1,)}, ended=True)
    measured = meter.sample()
    assert (measured.others_s, measured.machine_s) == (4.0, 8.0)
    assert measured.busy


def test_where_the_system_does_not_say_nothing_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processor_times", lambda: None)
    assert others_since(None) == others_since(ProcessorTimes(1.0, 1.0, 0.0)) == (0.0, 0.0)
    assert not Sample(((1,),), 1, 1.0).busy


def test_the_times_of_this_machine_add_up() -> None:
    before, now = read(), read()
    assert 0 < before.idle < before.total <= now.total
    assert 0 < before.own <= now.own < now.total - now.idle


def test_a_burst_in_a_long_sample_is_no_busy_machine() -> None:
    assert disturbed(2 * BUSY_SHARE).busy
    assert not disturbed(BUSY_SHARE / 2).busy
    assert not total([disturbed(2 * BUSY_SHARE), disturbed(0.0), disturbed(0.0)]).busy
