"""A draft model looks at the end of a long prompt first, and reads the rest once that is earned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.bench.drive import fixed_costs
from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.build import build_loop
from omlx.engine.speculation.drafters.draft_model import LOOK_BACK, DraftModel
from omlx.engine.speculation.strategy import DRAFT
from omlx.engine.types import Sampling, Speculation
from tests.engine.fakes import VOCAB, Counting
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    loop_of,
    model,
    prompt,
    request,
)
from tests.lanes import few

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
    bench = Bench(loop_of("llama", model("llama"), window=None)).submit(
        request("a", prompt(2 * LOOK_BACK + 40), max_tokens=60, speculation=ADAPTIVE)
    )
    bench.until(lambda: len(bench.tokens["a"]) > 2)
    (row,) = bench.loop.scheduler.running
    drafter = draft_of(bench)
    clause = ADAPTIVE.strategy.clause("draft")
    assert clause is not None
    for _ in range(2):
        drafter.drop(row.id)
        proposal = drafter.propose(row, 4, clause)
        assert proposal is not None
        assert proposal.lag == LOOK_BACK
        assert proposal.skipped == len(row.tokens) - LOOK_BACK
        bench.step()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
@pytest.mark.parametrize("family", few(("llama", "gemma3_text", "lfm2", "qwen3_next"), "lfm2"))
def test_tokens_are_those_of_plain_decoding(family: str, sampling: Sampling) -> None:
    for draft_s in (0.02, 0.5):
        costs = fixed_costs(draft="tiny", draft_seconds=draft_s)
        one = request("a", prompt(300), sampling, max_tokens=40, speculation=ADAPTIVE)
        bench = (
            Bench(loop_of(family, model(family), window=None, costs=costs))
            .run(one)
            .proven(family, one)
        )
        assert bench.stats().proposed > 0


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_a_fixed_draft_length_reads_the_whole_prompt(family: str) -> None:
    one = request("a", prompt(300), max_tokens=40)
    one = replace(one, speculation=Speculation(DRAFT, DraftLength.exactly(4)))
    bench = Bench(loop_of(family, model(family))).run(one).proven(family, one)
    stats = bench.stats().drafters["tiny"]
    assert stats.accepted == stats.proposed > 20
