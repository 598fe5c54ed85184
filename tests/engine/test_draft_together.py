"""A draft model: rows in the same passes; the end of a long prompt first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from lab.bench.drive import fixed_costs
from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker
from omlx.engine.speculation.drafters.draft_model import LINGER_ROUNDS, LOOK_BACK, DraftModel
from omlx.engine.speculation.drafting import CATCH_UP_SLICE
from omlx.engine.speculation.strategy import DRAFT, OFF
from omlx.engine.types import Request, Sampling, Speculation
from tests import zoo
from tests.engine.fakes import VOCAB, Corrupted, Counting
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    label,
    loop_of,
    model,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.engine.masks import Ruled, only_even
from tests.lanes import few

FAMILIES = ["llama", "gemma3_text", "qwen3_next", "lfm2"]
"""Dense, sliding and two hybrids, as target and as draft model."""


class Counted(nn.Module):
    """A model that counts its passes, and the tokens of each as (rows, tokens)."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.passes: list[tuple[int, ...]] = []

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.passes.append(tuple(tokens.shape))
        return self.inner(tokens, cache=cache)


def draft_by(counted: Counted) -> DraftModel:
    return DraftModel("tiny", counted, zoo.VOCAB_SIZE, cache_maker(counted.inner))


class Watched(Bench):
    """Checks the draft model's caches after every step too."""

    @property
    def drafter(self) -> DraftModel:
        (drafter,) = self.loop.scheduler.speculator.drafters
        return drafter

    def step(self) -> list[Any]:
        events = super().step()
        self.drafter.check()
        return events


def drafting(family: str, bad: Callable[[int], bool] = lambda _: False) -> Watched:
    """A loop whose draft model is the target, wrong at the positions where `bad` holds."""
    loop = loop_of(family)
    loop.use_drafters([Corrupted(model(family), bad)])
    return Watched(loop)


def rows_of(count: int, sampling: Sampling = GREEDY, tokens: int = 30) -> list[Request]:
    return [request(f"r{i}", prompt(5 + 9 * i, i), sampling, tokens + 4 * i) for i in range(count)]


@pytest.mark.parametrize(
    ("family", "sampling"), few(product(FAMILIES, (GREEDY, WARM)), every=3), ids=label
)
def test_a_perfect_draft_model_is_accepted_as_a_whole_in_every_row(
    family: str, sampling: Sampling
) -> None:
    """Wrong positions, masks or states of a shared cache show in acceptance, not in tokens."""
    bench, rows = drafting(family), rows_of(3, sampling)
    bench.run(*rows).proven(family)
    assert bench.drafting_together > 3
    for one in rows:
        stats = bench.stats(one.id)
        assert stats.accepted == stats.proposed > 12, one.id


@pytest.mark.parametrize("family", few(FAMILIES, "gemma3_text", "lfm2"))
def test_rejections_roll_back_each_row_of_the_shared_cache(family: str) -> None:
    bench, rows = drafting(family, lambda at: at % 7 in (2, 5)), rows_of(3)
    bench.run(*rows).proven(family)
    assert bench.drafting_together > 3
    wrong = sum(at % 7 in (2, 5) for at in range(12, 48)) / 36
    for one in rows:
        stats = bench.stats(one.id)
        assert stats.accepted > 0.5 * (1 - wrong) * stats.proposed, one.id
        assert stats.accepted < stats.proposed


@pytest.mark.parametrize("family", few(FAMILIES, "gemma3_text", "lfm2"))
def test_rows_join_leave_and_take_up_prefixes(family: str) -> None:
    bench = drafting(family, lambda at: at % 5 == 3)
    first, second, third, fourth = rows_of(4)
    bench.submit(first, second).until(lambda: len(bench.tokens["r1"]) > 6)
    bench.submit(third).until(lambda: len(bench.tokens["r2"]) > 4)
    bench.loop.cancel("r1")
    bench.submit(fourth).until(lambda: "r0" in bench.finished)
    following = request("r9", (*first.tokens, *bench.tokens["r0"], 3, 4), max_tokens=20)
    bench.run(following).proven(family, cancelled="r1")
    assert bench.stats("r9").cached_n > 0
    assert bench.drafting_together > 6
    assert not bench.drafter._caches.members


def test_a_shared_pass_that_fails_costs_its_rows_their_drafts_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, rows = drafting("llama"), rows_of(3)
    bench.submit(*rows).until(lambda: bench.drafting_together > 1)
    with monkeypatch.context() as now:
        now.setattr(bench.drafter, "_draft_tokens", lambda *_: 1 / 0)
        bench.until(lambda: not bench.drafter._caches.members)
    bench.run(request("later", prompt(11, 8))).proven("llama")
    gates = [bench.stats(one.id).gates["corrupted"].reason for one in rows]
    assert [gate.code for gate in gates if gate] == ["spec.off.drafter_failed"] * 3
    assert bench.stats("later").accepted > 16


@pytest.mark.parametrize("count", [2, 4])
def test_one_pass_per_position_serves_all_rows(count: int) -> None:
    counted, loop = Counted(model("llama")), loop_of("llama")
    loop.use_drafters([draft_by(counted)])
    rows = [request(f"r{i}", prompt(9, i)) for i in range(count)]
    bench = Watched(loop).submit(*rows)
    bench.until(lambda: bench.drafting_together > 1)
    counted.passes.clear()
    before = bench.drafting_together
    bench.until(lambda: bench.drafting_together == before + 3)
    assert len(counted.passes) == 3 * 4
    assert {shape[0] for shape in counted.passes} == {count}


def test_a_row_that_drafts_by_lookups_meanwhile_stays_in_the_shared_cache() -> None:
    """It is read along, and leaves the cache when it has not drafted for long."""
    bench = drafting("llama")
    rows = rows_of(3, tokens=120)
    bench.submit(*rows).until(lambda: len(bench.drafter._caches.members) == 3)
    speculator = bench.loop.scheduler.speculator
    (row,) = (s for s in bench.loop.scheduler.running if s.request.id == "r1")
    speculator.record_of(row).drafters = []
    bench.until(lambda: bench.drafter._rows[row.id].idle > 2)
    assert row.id in bench.drafter._caches.members
    rounds = bench.drafting_together
    bench.until(lambda: row.id not in bench.drafter._caches.members)
    assert bench.drafting_together - rounds <= LINGER_ROUNDS
    bench.run().proven("llama")


def test_penalties_masks_and_images_of_other_rows_change_nothing() -> None:
    bench = drafting("llama")
    warm = replace(WARM, repetition_penalty=1.3, presence_penalty=0.4)
    penalised = [replace(one, sampling=warm) for one in rows_of(2)]
    masked = request("m", prompt(8, 5), max_tokens=24)
    held = replace(masked, mask=Ruled(only_even))
    bench.run(*penalised, held).proven("llama", *penalised)
    free = replace(unassisted(masked), mask=Ruled(only_even))
    assert bench.tokens["m"] == plain("llama", free)
    assert all(bench.stats(one.id).accepted > 8 for one in penalised)


@pytest.mark.parametrize("strategy", few((DRAFT, OFF), DRAFT), ids=str)
def test_no_stream_waits_for_another_row_to_catch_up(strategy: Any) -> None:
    """A draft model that has much to read does so between the steps of the others."""
    counted = Counted(model("llama"))
    loop = loop_of("llama", limits=replace(LIMITS, context_length=4096))
    loop.use_drafters([draft_by(counted)])
    speculation = Speculation(strategy)
    short = request("short", prompt(9, 1), max_tokens=90, speculation=speculation)
    long = request("long", prompt(6 * CATCH_UP_SLICE), max_tokens=40)
    bench = Watched(loop)
    bench.submit(short).until(lambda: len(bench.tokens["short"]) > 4)
    bench.submit(long)
    waited = None
    while bench.loop.has_work:
        counted.passes.clear()
        said = len(bench.tokens["short"])
        bench.step()
        read = sum(rows * tokens for rows, tokens in counted.passes)
        assert read <= CATCH_UP_SLICE + 64
        if waited is not None and "short" not in bench.finished:
            assert len(bench.tokens["short"]) > waited
        waited = said if read >= CATCH_UP_SLICE else None
    bench.proven("llama", short, long)
    assert bench.stats("long").accepted > 20


LONG = replace(LIMITS, context_length=4096, num_draft_tokens=None)
ADAPTIVE = Speculation(DRAFT, DEFAULT_DRAFT_LENGTH)


def draft_of(bench: Bench) -> DraftModel:
    (drafter,) = (d for d in bench.loop.scheduler.speculator.drafters if isinstance(d, DraftModel))
    return drafter


def test_a_long_prompt_is_read_once_the_time_for_it_was_saved() -> None:
    count = tuple(i % VOCAB for i in range(1500))
    costs = fixed_costs(draft="tiny", draft_seconds=0.5)  # 1,500 tokens take some eight plain steps
    loop = build_loop(
        Counting(), VOCAB, LONG, draft=Counting(), draft_name="tiny", cost_model=costs
    )
    bench = Bench(loop).submit(request("a", count, max_tokens=120, speculation=ADAPTIVE))
    bench.until(lambda: bench.drafted("a") > 0)
    (row,) = draft_of(bench)._rows.values()
    assert row.skipped >= len(count) - LOOK_BACK
    assert draft_of(bench)._caches.held(row.id) <= LOOK_BACK + 8
    bench.until(lambda: not next(iter(draft_of(bench)._rows.values())).skipped)
    (row,) = draft_of(bench)._rows.values()
    assert draft_of(bench)._caches.held(row.id) > len(count)
    bench.run()
    assert bench.tokens["a"] == [(count[-1] + 1 + i) % VOCAB for i in range(120)]
    stats = bench.stats().drafters["tiny"]
    assert stats.accepted == stats.proposed > 20


def test_the_end_that_is_looked_at_is_that_of_the_text_so_far() -> None:
    """A model that is first used in the middle of an answer does not read the answer either."""
    one = request("a", prompt(2 * LOOK_BACK + 40), max_tokens=60, speculation=ADAPTIVE)
    bench = Bench(loop_of("llama", model("llama"), window=None)).submit(one)
    bench.until(lambda: len(bench.tokens["a"]) > 2)
    (row,) = bench.loop.scheduler.running
    drafter = draft_of(bench)
    clause = ADAPTIVE.strategy.clause("draft")
    for _ in range(2):
        drafter.drop(row.id)
        proposal = drafter.propose(row, 4, clause)
        assert proposal.lag == LOOK_BACK
        assert proposal.skipped == len(row.tokens) - LOOK_BACK
        bench.step()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
@pytest.mark.parametrize("family", few(("llama", "gemma3_text", "lfm2", "qwen3_next"), "lfm2"))
def test_tokens_are_those_of_plain_decoding(family: str, sampling: Sampling) -> None:
    for draft_s in (0.02, 0.5):
        costs = fixed_costs(draft="tiny", draft_seconds=draft_s)
        one = request("a", prompt(300), sampling, max_tokens=40, speculation=ADAPTIVE)
        bench = Bench(loop_of(family, model(family), window=None, costs=costs)).run(one)
        bench.proven(family)
        assert bench.stats().proposed > 0


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_a_fixed_draft_length_reads_the_whole_prompt(family: str) -> None:
    one = request("a", prompt(300), max_tokens=40)
    one = replace(one, speculation=Speculation(DRAFT, DraftLength.exactly(4)))
    bench = Bench(loop_of(family, model(family))).run(one).proven(family, one)
    stats = bench.stats().drafters["tiny"]
    assert stats.accepted == stats.proposed > 20
