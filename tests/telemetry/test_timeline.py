from __future__ import annotations

from omlx.telemetry.usage import STEP_S, Step, Timeline


class Wall:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_tokens_within_a_step_are_summed_and_silence_adds_no_step() -> None:
    wall = Wall()
    timeline = Timeline(wall)
    timeline.add(3, 1)
    wall.now += STEP_S - 0.1
    timeline.add(2, 2)
    wall.now += 10 * STEP_S
    timeline.add(1, 0)
    first = 1000 // STEP_S * STEP_S
    assert timeline.since(0) == [Step(first, 5, 3), Step(first + 10 * STEP_S, 1, 0)]
    assert timeline.since(first + 1) == [Step(first + 10 * STEP_S, 1, 0)]


def test_it_is_bounded_and_survives_a_clock_that_is_set_back() -> None:
    wall = Wall()
    timeline = Timeline(wall, max_steps=3)
    for _ in range(10):
        timeline.add(1, 0)
        wall.now += STEP_S
    assert len(timeline.since(0)) == 3
    wall.now -= 3600
    timeline.add(7, 0)
    steps = timeline.since(0)
    assert [step.tokens for step in steps] == [1, 1, 8]
    assert sorted(step.at for step in steps) == [step.at for step in steps]
