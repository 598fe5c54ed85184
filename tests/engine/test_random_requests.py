"""Random requests of every kind in one loop, submitted and cancelled while others speculate.

Each has the tokens of plain decoding alone, its statistics add up, and nothing of it remains.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest

from lab.bench.drive import fixed_costs, flat
from omlx.draft_length import DEFAULT_DRAFT_LENGTH, MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.strategy import Clause, parse
from omlx.engine.step.plan import Window
from omlx.engine.step.priority import PrefillPacing
from omlx.engine.types import FinishReason, Request, Speculation
from tests import zoo
from tests.engine.fakes import StopAt
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    corrupted,
    decode,
    loop_of,
    model,
    noisy,
    prompt,
    request,
    unassisted,
)
from tests.engine.masks import Rule, Ruled, formal, thirds, until
from tests.lanes import few

RULES: tuple[Rule | None, ...] = (None, None, None, None, thirds, formal, until(formal, 17))
STRATEGIES = (
    "auto",
    "auto",
    "ngram",
    "draft",
    "off",
    "ngram;draft",
    "ngram:n=4,m=24;draft:m=5",
    "auto:min=3",
)
SAMPLINGS = (
    *(GREEDY, WARM, replace(WARM, repetition_penalty=1.3, presence_penalty=0.5)),
    *(replace(each, logit_bias=((7, 80.0), (23, 80.0), (42, 80.0))) for each in (GREEDY, WARM)),
)
WINDOWS = (
    None,
    DEFAULT_DRAFT_LENGTH,
    *map(DraftLength.exactly, (1, 5, 33)),
    DraftLength(5, 8, 16),
    DraftLength(1, 2, 2),
)
PAST = ("none", "perfect", "corrupted", "unrelated")


@dataclass
class Asked:
    """A request and what is to come of it."""

    of: Request
    answer: list[int]

    def bounds(self, drafter: str) -> tuple[int, int]:
        """Least and most that may be drafted for it at a time."""
        speculation = self.of.speculation
        clause = speculation.strategy.clause("ngram" if drafter == "ngram" else "draft") or Clause(
            drafter
        )
        length = speculation.draft_length or DEFAULT_DRAFT_LENGTH
        most = min(length.max, clause.draft_length.max or MAX_DRAFT_LENGTH)
        free = length.fixed is not None or drafter == "forced" or self.of.mask is not None
        return 1 if free else min(max(length.min, clause.draft_length.min, 1), most), most


class Company:
    """Draws requests and runs them, by one seed."""

    def __init__(self, family: str, seed: int, rows: Sequence[int] = (1, 2, 4)) -> None:
        self.rng = rng = random.Random(f"{family} {seed}")
        self.family = family
        self.asked: dict[str, Asked] = {}
        self.conversations: list[tuple[int, ...]] = []
        strange = model(rng.choice(("lfm2", "gemma3_text", "llama4")), seed=1)
        draft = rng.choice((None, model(family), noisy(family), strange))
        costs = fixed_costs(flat, "tiny", rng.choice((0.02, 0.3)))
        limits = replace(
            LIMITS,
            max_rows=rng.choice(rows),
            prefill_chunk=rng.choice((16, 2048)),
            prefill_slice=16,
        )
        self.bench = Bench(loop_of(family, draft, None, limits, costs))

    @property
    def loop(self) -> EngineLoop:
        return self.bench.loop

    def run(self, requests: int, together: int = 0) -> None:
        """Submit so many, the first `together` at once, others now and then, and go on until
        nothing is left to do.
        """
        for _ in range(together):
            self.ask()
        while len(self.asked) < requests or self.loop.has_work:
            if len(self.asked) < requests and (not self.loop.has_work or self.rng.random() < 0.05):
                self.ask()
            if self.rng.random() < 0.01:
                self.loop.cancel(self.rng.choice(list(self.asked)))
            self.bench.step()
            done = [name for name in self.bench.finished if self.bench.tokens[name]]
            self.conversations = [
                (*self.asked[name].of.tokens, *self.bench.tokens[name]) for name in done
            ]

    def ask(self) -> None:
        one = self.drawn(f"r{len(self.asked)}")
        self.asked[one.of.id] = one
        self.bench.submit(one.of)

    def drawn(self, name: str) -> Asked:
        rng = self.rng
        tokens = prompt(rng.choice((1, 3, 9, 30)), salt=len(self.asked)) * rng.choice((1, 1, 4))
        if self.conversations and rng.random() < 0.4:
            tokens = (*rng.choice(self.conversations), *tokens[:4])
        rule, length = rng.choice(RULES), rng.choice((1, 2, 5, 24, 48))
        of = request(
            name,
            tokens[:300],
            rng.choice(SAMPLINGS),
            length,
            stable=rng.choice((0, len(tokens[:300]) // 2)),
        )
        answer = decode(
            model(self.family), replace(unassisted(of), mask=Ruled(rule) if rule else None)
        )
        stop = {}
        if rng.random() < 0.3:
            token = rng.choice(answer)
            answer = answer[: answer.index(token) + 1]
            stop = rng.choice(({"stop_ids": frozenset({token})}, {"stop": StopAt(token)}))
        wrong, other = corrupted(answer, lambda i: i % 11 == 8), prompt(60, salt=5)
        pasts = {"none": (), "perfect": answer, "corrupted": wrong, "unrelated": other}
        past = pasts[rng.choice(PAST)]
        asked = Speculation(parse(rng.choice(STRATEGIES)), rng.choice(WINDOWS), tuple(past))
        return Asked(
            replace(of, speculation=asked, mask=Ruled(rule) if rule else None, **stop), answer
        )

    def prove(self) -> None:
        assert not self.bench.failed
        speculator = self.loop.scheduler.speculator
        assert not speculator._rows
        assert not any(drafter._rows for drafter in speculator.drafters)
        windows = [window for window in self.bench.windows if window.draft_n]
        for row, (name, one) in enumerate(self.asked.items(), 1):
            said, whole = (
                self.bench.tokens[name],
                self.bench.finished[name].reason is not FinishReason.CANCELLED,
            )
            assert said == (one.answer if whole else one.answer[: len(said)]), name
            self.prove_counts(name, one, [window for window in windows if window.row == row])

    def prove_counts(self, name: str, one: Asked, windows: list[Window]) -> None:
        request_stats = self.bench.stats(name)
        assert request_stats.accepted == self.bench.drafted(name)
        assert request_stats.predicted_n == len(self.bench.tokens[name])
        assert (request_stats.speculation.code == "spec.on") == bool(windows)
        for drafter, stats in request_stats.drafters.items():
            lengths = [window.draft_n for window in windows if window.drafter == drafter]
            least, most = one.bounds(drafter)
            assert (stats.rounds, stats.proposed) == (len(lengths), sum(lengths))
            assert least <= min(lengths) <= max(lengths) <= most
            assert sum(stats.accepted_at) == stats.accepted <= stats.proposed
            assert sum(stats.spans.values()) == sum(stats.repairs.values()) == stats.rounds


@pytest.mark.parametrize(
    ("family", "seed"),
    few(product(zoo.MAIN_NAMES, range(12)), *product(("gemma3_text", "falcon_h1", "llama4"), (1,))),
)
def test_random_requests_have_the_tokens_of_plain_decoding(family: str, seed: int) -> None:
    company = Company(family, seed)
    company.run(5)
    company.prove()


BATCHED = ("llama", "gemma3_text", "qwen3_next", "falcon_h1", "lfm2", "gpt_oss", "deepseek_v3")


@pytest.mark.parametrize(
    ("family", "seed"),
    few(
        ((BATCHED[seed % len(BATCHED)], seed) for seed in range(1000)),
        ("gemma3_text", 99),
        ("qwen3_next", 100),
    ),
)
def test_random_requests_that_start_together_have_the_tokens_of_plain_decoding(
    family: str, seed: int
) -> None:
    company = Company(family, seed, rows=(4, 8))
    company.run(6, together=3)
    company.prove()


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


@pytest.mark.parametrize("family", few(("llama", "falcon_h1"), "falcon_h1"))
def test_answers_are_the_same_where_rows_wait_for_prompts(family: str) -> None:
    disturbed(family, range(50, 51), timed=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_five_hundred_background_answers_equal_undisturbed_ones(family: str) -> None:
    """With drafters, masks, stops and penalties."""
    assert disturbed(family, range(27)) >= 6
