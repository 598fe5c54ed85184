"""What goes wrong for one request ends that request, with a code, and nobody else notices."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from omlx.engine.loop import EngineLoop
from omlx.engine.model import cache_maker
from omlx.engine.spec.draft_model import DraftModel
from omlx.engine.types import Failed, FinishReason, Sampling
from tests.engine.fakes import VOCAB, Broken, Counting, Failing, Scripted, StuckCache
from tests.engine.harness import LIMITS, Bench, loop_of, plain, prompt, request


def counting(first: int, n: int) -> list[int]:
    return [(first + 1 + i) % VOCAB for i in range(n)]


def apart(poison: int) -> EngineLoop:
    """A loop whose rows run one after another, over a model that cannot read the id `poison`."""
    return EngineLoop(Counting(frozenset({poison})), VOCAB, LIMITS)


def failure(bench: Bench, name: str) -> Failed:
    assert name not in bench.finished
    return bench.failed[name]


def test_a_forward_that_raises_ends_its_request_alone() -> None:
    bench = Bench(apart(poison=33), check=False)
    bench.submit(request("a", (10,), max_tokens=20)).until(lambda: len(bench.tokens["a"]) > 3)
    bench.run(request("bad", (31, 32, 33, 34), max_tokens=5))
    error = failure(bench, "bad").error
    assert error.code == "engine.step"
    assert "poisonous" in str(error.params["detail"])
    assert bench.tokens["a"] == counting(10, 20)
    assert bench.tokens["bad"] == []
    bench.run(request("after", (2, 3), max_tokens=4))
    assert bench.tokens["after"] == counting(3, 4)


def test_a_failed_request_leaves_nothing_to_reuse() -> None:
    bench = Bench(apart(poison=20), check=False).run(request("a", (10,), max_tokens=20))
    assert bench.tokens["a"] == counting(10, 10)
    assert failure(bench, "a").error.status == 500
    assert not len(bench.loop.runner.caches.kept)
    assert bench.loop.runner.caches.nbytes == 0


def test_a_stop_matcher_that_raises_ends_its_request_alone() -> None:
    bench = Bench(loop_of("llama"))
    good, bad = request("good", prompt(9)), request("bad", prompt(8, 2), stop=Broken(after=4))
    bench.run(bad, good)
    assert failure(bench, "bad").error.code == "engine.step"
    assert bench.tokens["good"] == plain("llama", good)
    assert len(bench.tokens["bad"]) == 4


def test_a_stop_matcher_that_raises_while_alone_and_speculating() -> None:
    bench = Bench(loop_of("qwen3_next"))
    free = request(max_tokens=30)
    bench.loop.use_drafters([Scripted(13, plain("qwen3_next", free), [2, 4])])
    bench.run(request(stop=Broken(after=5)))
    assert failure(bench, "a").error.code == "engine.step"
    bench.run(request("b"))
    assert bench.tokens["b"] == plain("qwen3_next", request("b"))


@pytest.mark.parametrize("after", [0, 3])
def test_a_drafter_that_raises_costs_the_request_nothing_but_its_drafts(after: int) -> None:
    loop = loop_of("llama")
    loop.use_drafters([Failing(after)])
    bench = Bench(loop).run(request())
    assert bench.tokens["a"] == plain("llama", request())
    assert bench.finished["a"].reason is FinishReason.LENGTH
    reason = bench.stats().speculation
    assert reason.code == "spec.off.drafter_failed"
    assert "no idea" in str(reason.params["detail"])


class Confused(Scripted):
    """Drafts well and raises when told what came of it, from its `after`-th round on."""

    after = 0

    def observe(self, sequence: object, accepted: int) -> None:
        self.after -= 1
        if self.after < 0:
            raise RuntimeError("did not expect that")


def test_a_drafter_that_raises_when_told_the_outcome_costs_no_more() -> None:
    loop = loop_of("llama")
    loop.use_drafters([Confused(13, plain("llama", request()), [2, 4])])
    bench = Bench(loop).run(request())
    assert bench.tokens["a"] == plain("llama", request())
    assert bench.stats().speculation.code == "spec.off.drafter_failed"


def test_a_drafter_that_raises_in_the_middle_is_off_from_then_on_and_told_so() -> None:
    loop = loop_of("llama")
    drafter = Confused(13, plain("llama", request()), [2, 4])
    drafter.after = 1
    loop.use_drafters([drafter])
    bench = Bench(loop).submit(request()).until(lambda: drafter.after < 0)
    sequence = loop.scheduler.running[0]
    told = copy.deepcopy(sequence.tallies)
    bench.run()
    assert sequence.tallies == told, "what came later is not its doing"
    assert bench.tokens["a"] == plain("llama", request())
    assert bench.stats().speculation.code == "spec.on"
    gate = bench.stats().gates["scripted"]
    assert (gate.state, gate.reason and gate.reason.code) == ("off", "spec.off.drafter_failed")


def test_what_a_drafter_held_when_it_raised_is_not_kept() -> None:
    loop = EngineLoop(Counting(), VOCAB, LIMITS)
    drafter = DraftModel("counting", Counting(frozenset({30})), VOCAB, cache_maker(Counting()))
    loop.use_drafters([drafter])
    bench = Bench(loop).run(request("a", (10,), max_tokens=30))
    assert bench.tokens["a"] == counting(10, 30)
    assert drafter.nbytes == 0
    bench.run(request("b", (41, 42), max_tokens=10))
    assert bench.stats("b").draft_n_accepted > 0
    assert drafter.nbytes > 0


def stuck_target() -> EngineLoop:
    """A target whose cache claims to be taken back and is not, though nothing turned speculation off."""
    loop = EngineLoop(Counting(make_cache=lambda: [StuckCache()]), VOCAB, LIMITS)
    loop.use_drafters([Scripted(1, counting(10, 40), [4, 1])])
    return loop


def test_a_rewind_that_fails_ends_its_request() -> None:
    bench = Bench(stuck_target(), check=False).submit(request("a", (10,), max_tokens=30))
    bench.run()
    assert failure(bench, "a").error.code == "rewind.failed"
    assert bench.tokens["a"] == counting(10, 7)
    bench.loop.use_drafters([])
    bench.run(request("b", (10,), max_tokens=5))
    assert bench.tokens["b"] == counting(10, 5)


def test_sampling_that_no_filter_accepts_ends_its_request_alone() -> None:
    bench = Bench(loop_of("llama"), check=False)
    bad = request("bad", prompt(5, 1), Sampling(temperature=1.0, repetition_penalty=-1.0))
    bench.submit(request("good")).until(lambda: len(bench.tokens["good"]) > 3)
    bench.run(bad)
    assert failure(bench, "bad").error.status == 500
    assert bench.tokens["good"] == plain("llama", request("good"))


def test_a_batch_goes_on_when_one_of_its_rows_fails() -> None:
    rows = [request(f"{i}", prompt(7, i), max_tokens=20) for i in range(3)]
    rows[1] = replace(rows[1], stop=Broken(after=6))
    bench = Bench(loop_of("recurrent_gemma")).run(*rows)
    assert failure(bench, "1").error.code == "engine.step"
    for one in (rows[0], rows[2]):
        assert bench.tokens[one.id] == plain("recurrent_gemma", one)
