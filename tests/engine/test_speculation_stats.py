"""What statistics and snapshots say about speculation."""

from __future__ import annotations

import json

import pytest

from omlx.draft_length import DraftLength
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel
from omlx.engine.speculation.strategy import AUTO, OFF, Strategy, parse
from omlx.engine.thread import EngineThread
from omlx.engine.types import Speculation
from omlx.errors import Reason
from omlx.records import Gate
from tests.engine.harness import Bench, loop_of, model, request


def asked(strategy: Strategy, window: int = 3) -> Speculation:
    return Speculation(strategy, DraftLength.exactly(window))


def test_times_are_those_of_rounds_that_were_timed() -> None:
    loop = loop_of("llama", model("llama"))
    for _ in range(CONFIG.min_samples):
        loop.cost_model.target.learn(PLAIN, 10, 10.0)
    bench = Bench(loop)
    bench.run(request(max_tokens=60))
    stats = bench.stats()
    drafter = stats.drafters["tiny"]
    # Read from two clocks.
    assert 0 < drafter.draft_ms + drafter.verify_ms <= 1.01 * stats.predicted_ms
    assert drafter.draft_ms > 0
    assert drafter.verify_ms > 0
    assert stats.speedup is not None
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
    bench = Bench(loop)
    bench.run(request(max_tokens=60))
    assert bench.stats().drafters["tiny"].rounds > CONFIG.min_samples
    assert bench.stats().speedup is None


def test_without_a_measured_plain_step_there_is_no_speed_up() -> None:
    bench = Bench(loop_of("llama", model("llama")))
    bench.run(request(max_tokens=1))
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
    bench = Bench(loop_of("llama"))
    bench.run(request(max_tokens=4, speculation=Speculation(AUTO)))
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
    engine = EngineThread()
    engine.start()
    try:
        engine.call(lambda: engine.attach("m", loop_of("llama"))).result()
        snapshot = engine.snapshot("m").result()
        assert snapshot is not None
        assert snapshot.drafters == {"ngram": "ngram"}
        assert engine.snapshot("other").result() is None
    finally:
        engine.stop()
