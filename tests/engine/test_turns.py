"""Turns of several models: the urgent ones step, the others get a twentieth of the time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from omlx.engine.types import URGENCY_RATIO
from omlx.engine.work import Turns


@dataclass
class Model:
    urgency: int
    step_s: float
    steps: int = 0
    frees_memory: bool = False


def drive(models: list[Model], seconds: float) -> None:
    turns = Turns()
    now = 0.0
    while now < seconds:
        due = turns.due(models)
        assert due
        for model in due:
            model.steps += 1
            now += model.step_s
            turns.stepped(model, models, model.step_s)


def test_models_of_equal_urgency_step_in_turn() -> None:
    models = [Model(0, 0.01), Model(0, 0.03)]
    drive(models, 4.0)
    assert abs(models[0].steps - models[1].steps) <= 1


@pytest.mark.parametrize("step_s", [0.002, 0.05, 1.0])
def test_a_less_urgent_model_has_a_share_of_the_time(step_s: float) -> None:
    typed, background = Model(0, 0.01), Model(10, step_s)
    drive([background, typed], 200.0)
    share = background.steps * step_s / (typed.steps * 0.01)
    assert 0.5 / URGENCY_RATIO < share <= 1.1 / URGENCY_RATIO + 2 * step_s / 200.0


def test_a_model_that_frees_memory_is_not_held() -> None:
    """Else a more urgent model that waits for the memory would wait for good."""
    turns = Turns()
    waiting, freeing = Model(0, 0.0), Model(10, 1.0, frees_memory=True)
    turns.stepped(freeing, [waiting, freeing], 1.0)
    assert turns.due([waiting, freeing]) == [waiting, freeing]


def test_a_model_alone_steps_always() -> None:
    background = Model(10, 0.5)
    drive([background], 10.0)
    assert background.steps == 20


def test_a_forgotten_model_begins_again() -> None:
    turns = Turns()
    typed, background = Model(0, 1.0), Model(10, 1.0)
    turns.stepped(typed, [typed, background], 100.0)
    turns.stepped(background, [typed, background], 1.0)
    assert turns.due([typed, background]) == [typed]
    turns.forget(background)
    assert turns.due([typed, background]) == [typed, background]
