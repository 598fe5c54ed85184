"""Processor time of other programs, and samples taken while they kept the machine busy."""

from __future__ import annotations

import pytest

from omlx.measure import load
from omlx.measure.load import BUSY_SHARE, ProcessorTimes, others_since
from omlx.measure.sample import Meter, Sample, total

read = load.processor_times  # before a fixture of the session hides other programs


def measured(share: float) -> Sample:
    return Sample(((1, 2),), 1, 1.0, others_s=2 * share, machine_s=2.0)


def test_other_programs_took_what_is_neither_idle_nor_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([ProcessorTimes(100.0, 50.0, 5.0), ProcessorTimes(108.0, 51.0, 8.0)])
    monkeypatch.setattr(load, "processor_times", lambda: next(times))
    meter = Meter(1)
    meter.add({0: (1,)}, ended=True)
    sample = meter.sample()
    assert (sample.others_s, sample.machine_s) == (4.0, 8.0)
    assert sample.busy


def test_where_the_system_does_not_say_nothing_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "processor_times", lambda: None)
    assert others_since(None) == others_since(ProcessorTimes(1.0, 1.0, 0.0)) == (0.0, 0.0)
    assert not Sample(((1,),), 1, 1.0).busy


def test_the_times_of_this_machine_add_up() -> None:
    before, now = read(), read()
    assert before is not None
    assert now is not None
    assert 0 < before.idle < before.total <= now.total
    assert 0 < before.own <= now.own < now.total - now.idle


def test_a_burst_in_a_long_sample_is_no_busy_machine() -> None:
    assert measured(2 * BUSY_SHARE).busy
    assert not measured(BUSY_SHARE / 2).busy
    assert not total([measured(2 * BUSY_SHARE), measured(0.0), measured(0.0)]).busy
