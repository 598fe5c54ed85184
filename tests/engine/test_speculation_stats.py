"""What statistics and snapshots say about speculation, and what a row's steps teach."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from omlx.draft_length import DraftLength
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.drafter import Draft, Proposal
from omlx.engine.speculation.drafting import RowRecord
from omlx.engine.speculation.policy import History, RowPolicy
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.speculation.strategy import AUTO, OFF, Strategy, parse
from omlx.engine.step.row import Clock, Interval, Row
from omlx.engine.types import Request, Speculation
from omlx.errors import Reason
from omlx.records import MAX_STEP_DEVIATION, Gate
from tests.engine.harness import Bench, loop_of, model, request
from tests.engine.threads import attach, started


def asked(strategy: Strategy, window: int = 3) -> Speculation:
    return Speculation(strategy, DraftLength.exactly(window))


def test_times_are_those_of_rounds_that_were_timed() -> None:
    loop = loop_of("llama", model("llama"))
    for _ in range(CONFIG.min_samples):
        loop.cost_model.target.learn(PLAIN, 10, 10.0)
    bench = Bench(loop).run(request(max_tokens=60))
    stats = bench.stats()
    drafter = stats.drafters["tiny"]
    # Read from two clocks.
    assert 0 < drafter.draft_ms + drafter.verify_ms <= 1.01 * stats.predicted_ms
    assert drafter.draft_ms > 0
    assert drafter.verify_ms > 0
    assert stats.speedup > 0


def test_a_prompt_that_is_read_alone_says_what_wide_passes_cost() -> None:
    prompt = tuple(i % 50 for i in range(130))
    bench = Bench(loop_of("llama"))
    bench.run(request(tokens=prompt, max_tokens=2), request("b", tokens=(9, *prompt), max_tokens=2))
    assert bench.loop.cost_model.target.sample_count(128, 130) == 0
    bench.run(request("c", tokens=(8, *prompt), max_tokens=2))
    assert bench.loop.cost_model.target.sample_count(128, 130) == 1
    bench.run(request("d", tokens=(8, *prompt[:-1], 7), max_tokens=2))
    assert bench.loop.cost_model.target.sample_count(128, 130) == 1  # most of it was kept


def test_a_single_slow_plain_step_gives_no_speed_up() -> None:
    loop = loop_of("llama", model("llama"))
    loop.cost_model.target.learn(PLAIN, 10, 10.0)  # kernels were compiled, memory was new
    bench = Bench(loop).run(request(max_tokens=60))
    assert bench.stats().drafters["tiny"].rounds > CONFIG.min_samples
    assert bench.stats().speedup is None


def test_without_a_measured_plain_step_there_is_no_speed_up() -> None:
    bench = Bench(loop_of("llama", model("llama"))).run(request(max_tokens=1))
    assert bench.stats().speedup is None
    bench.run(request("b", max_tokens=40, speculation=Speculation(OFF)))
    assert (bench.stats("b").speedup, bench.stats("b").drafters) == (None, {})


@pytest.mark.parametrize(
    ("strategy", "with_draft", "without"),
    [
        ("auto", "auto", "auto"),
        ("ngram:m=8;draft", "ngram:m=8;draft", "ngram:m=8"),
        ("draft", "draft", "off"),
    ],
)
def test_the_strategy_is_what_is_left_of_it(strategy: str, with_draft: str, without: str) -> None:
    for draft, left in ((model("llama"), with_draft), (None, without)):
        bench = Bench(loop_of("llama", draft))
        bench.run(request(max_tokens=4, speculation=asked(parse(strategy))))
        assert str(bench.stats().strategy) == left


def test_notes_come_back() -> None:
    bench = Bench(loop_of("llama"))
    bench.run(request(max_tokens=2, speculation=asked(parse("draftless"))))
    assert [note.code for note in bench.stats().strategy_notes] == ["strategy.read_as"]


def test_gates_are_those_of_the_drafters_asked_for_and_an_absent_draft_is_one() -> None:
    bench = Bench(loop_of("llama")).run(request(max_tokens=4, speculation=Speculation(AUTO)))
    gates = bench.stats().gates
    assert gates["draft"] == Gate("off", Reason("spec.off.no_draft_model"))
    assert gates["ngram"].state == "observing"
    bench.run(request("b", max_tokens=4, speculation=Speculation(OFF)))
    assert bench.stats("b").gates == {}


def test_an_answer_that_was_over_at_once_says_so_and_not_that_nothing_pays() -> None:
    bench = Bench(loop_of("llama", model("llama"), window=None))
    bench.run(request(max_tokens=1, speculation=Speculation(AUTO)))
    bench.submit(request("b", speculation=Speculation(AUTO))).loop.cancel("b")
    bench.run(request("c", max_tokens=2, speculation=Speculation(AUTO)))
    codes = [bench.stats(name).speculation.code for name in "abc"]
    assert codes == ["spec.off.no_chance", "spec.off.no_chance", "spec.observing"]


def test_a_window_of_nothing_closes_every_gate() -> None:
    bench = Bench(loop_of("llama", model("llama")))
    bench.run(request(max_tokens=8, speculation=asked(AUTO, 0)))
    closed = Gate("off", Reason("spec.off.zero_window"))
    assert bench.stats().gates == {"ngram": closed, "tiny": closed}


def test_a_snapshot_is_plain_data_and_changes_nothing() -> None:
    loop = loop_of("llama", model("llama"))
    before = loop.snapshot()
    assert before.drafters == {"ngram": "ngram", "tiny": "draft"}
    assert (before.off_reason, before.missing.get("draft"), before.unbatchable) == (None,) * 3
    Bench(loop).run(request(max_tokens=20))
    after = loop.snapshot()
    assert after == loop.snapshot()
    assert CostModel.from_json(json.loads(json.dumps(after.costs))).target.widest > 0
    assert loop_of("llama").snapshot().missing["draft"] == Reason("spec.off.no_draft_model")


def test_the_thread_gives_a_snapshot_of_what_is_attached() -> None:
    with started() as engine:
        attach(engine, lambda: loop_of("llama"))
        assert engine.snapshot("m").result().drafters == {"ngram": "ngram"}
        assert engine.snapshot("other").result() is None


def lookup(match: int, *tokens: int) -> Proposal:
    return Proposal("ngram", len(tokens), match=match, tokens=tokens)


def test_an_unused_lookup_counts_where_the_next_match_is_drafted():
    """Every second lookup of three tokens is right, and the match of four behind it is drafted."""
    row = Row(0, Request("a", (1,)), [1], 9, Clock(0.0))
    record = RowRecord(row, RowPolicy(CostModel(), History()), [], {}, {})
    for _ in range(10):
        record.unused = lookup(3, 6, 6)
        record.observe([5], Interval(1.0, PLAIN))
        record.unused = lookup(3, 7, 8, 9)
        record.observe([7], Interval(1.0, PLAIN))
        longer = lookup(4, 8, 9)
        record.unused = longer
        record.begin_round(longer, Draft("ngram", 2, (8, 9)))
        record.policy.observe_verification(longer, 2, 2)
        record.observe([8, 9, 1], Interval(1.1, 3))
    rates = record.policy.records["ngram"].acceptance.rates()
    assert 0.35 < rates[0] < 0.65 < rates[1]


def test_rows_of_a_batch_are_compared_with_one_plain_step_of_its_longest():
    speculator = Speculator([])
    rows = [
        Row(row, Request(str(row), (1,)), [1] * tokens, 9_999, Clock(0.0))
        for row, tokens in enumerate((40, 900))
    ]
    interval = Interval(0.1, PLAIN, rows=2)
    for _ in range(4):
        timed = speculator.observe_pass(rows, interval)
        for row in rows:
            speculator.observe_commit(row, [5], timed)
    assert timed.plain_s == speculator.cost_model.plain_step(2, 900) > 0
    assert [speculator.speedup(row) for row in rows] == [pytest.approx(1.0)] * 2
    faster = replace(timed, seconds=0.05)
    speculator.observe_commit(rows[0], [5], faster)
    speedup = speculator.speedup(rows[0])
    assert speedup > 1.0


def test_steps_that_differ_from_their_estimates_are_uneven():
    speculator = Speculator([])
    rows = [Row(n, Request(str(n), (1,)), [1] * 40, 9_999, Clock(0.0)) for n in range(2)]
    for _ in range(4):
        even = speculator.observe_pass(rows, Interval(0.1, PLAIN, rows=2))
        speculator.observe_commit(rows[0], [5], even)
    assert speculator.step_deviation(rows[0]) == pytest.approx(0.0)
    for _ in range(8):
        speculator.observe_commit(rows[0], [5], replace(even, seconds=0.5))
    assert speculator.step_deviation(rows[0]) > MAX_STEP_DEVIATION
