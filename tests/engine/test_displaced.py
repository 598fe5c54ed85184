"""Background answers whose rows are given away again and again equal undisturbed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from omlx.engine.step.pacing import PrefillPacing
from tests.engine.test_random_requests import Asked, Company
from tests.lanes import few

FAMILIES = ("llama", "gemma3_text", "qwen3_next", "falcon_h1", "lfm2")
TYPED = 4
"""One request in so many is typed; the others are in the background."""
LEAST = 20
"""Tokens of an answer in the background."""


class Disturbed(Company):
    """Few rows, and typed requests that take them. `timed`: prompts are read by time."""

    def __init__(self, family: str, seed: int, rows: Sequence[int], *, timed: bool) -> None:
        super().__init__(family, seed, rows)
        if not timed:
            return
        limits = replace(self.loop.limits, pause_s=0.001)
        pacing = PrefillPacing(limits, self.loop.cost_model.target)
        self.loop.scheduler.planner.pacing = pacing

    def run(self, requests: int, together: int = 0) -> None:
        while len(self.asked) < requests or self.loop.has_work:
            if len(self.asked) < requests and self.rng.random() < 0.1:
                self.ask()
            self.bench.step()

    def drawn(self, name: str) -> Asked:
        typed = len(self.asked) % TYPED == TYPED - 1
        one = super().drawn(name)
        while not typed and len(one.answer) < LEAST:
            one = super().drawn(name)
        return replace(one, of=replace(one.of, priority=0 if typed else 10))

    def prove(self) -> None:
        assert not self.bench.failed
        assert not self.loop.scheduler.speculator._rows
        for name, one in self.asked.items():
            said = self.bench.tokens[name]
            assert said == one.answer, name
            stats = self.bench.stats(name)
            assert (stats.accepted, stats.predicted_n) == (self.bench.drafted(name), len(said))

    @property
    def displaced(self) -> int:
        return sum(self.bench.stats(name).displaced for name in self.asked)


def disturbed(family: str, seeds: range, *, timed: bool = False) -> int:
    """Run and prove four answers of each seed; return how often a row was given away."""
    displaced = 0
    for seed in seeds:
        company = Disturbed(family, seed, rows=(2, 3) if timed else (1, 2), timed=timed)
        company.run(5)
        company.prove()
        displaced += company.displaced
    return displaced


@pytest.mark.parametrize("family", few(FAMILIES, "qwen3_next"))
def test_sixteen_background_answers_equal_undisturbed_ones(family: str) -> None:
    """Eight of each family, with drafters, masks, stops and penalties."""
    assert disturbed(family, range(2)) >= 1


@pytest.mark.parametrize("family", few(("llama", "falcon_h1"), "falcon_h1"))
def test_answers_are_the_same_where_rows_wait_for_prompts(family: str) -> None:
    disturbed(family, range(50, 51), timed=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_five_hundred_background_answers_equal_undisturbed_ones(family: str) -> None:
    assert disturbed(family, range(2, 27)) >= 5
