"""An error of one request ends that request, with a code, and no other; NaN is one, too."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import mlx.core as mx
import pytest
from mlx import nn

from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.drafter import Drafter, Proposal
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.policy import RowPolicy
from omlx.engine.types import FinishReason, Sampling, Speculation
from omlx.errors import NonFiniteLogits
from tests import zoo
from tests.engine.fakes import VOCAB, Broken, Counting, Scripted, StuckCache
from tests.engine.harness import (
    LIMITS,
    Bench,
    loop_of,
    model,
    noisy,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.lanes import few


def counting(first: int, n: int) -> list[int]:
    return [(first + 1 + i) % VOCAB for i in range(n)]


def apart(poison: int) -> EngineLoop:
    """A loop whose rows run one after another, over a model that cannot read the id `poison`."""
    return build_loop(Counting(frozenset({poison})), VOCAB, LIMITS)


def test_a_forward_that_raises_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(apart(poison=33), check=False)
    bench.submit(request("a", (10,), max_tokens=20)).until(lambda: len(bench.tokens["a"]) > 3)
    bench.run(request("bad", (31, 32, 33, 34), max_tokens=5))
    error = bench.failed["bad"].error
    assert error.code == "engine.step"
    assert error.params == {"detail": "ValueError"}, "the client does not see internals"
    (record,) = [record for record in caplog.records if record.name == "omlx.engine"]
    assert record.levelname == "ERROR"
    assert "poisonous" in str(record.exc_info[1])
    assert record.exc_info[2] is not None, "the log says where"
    assert bench.tokens["a"] == counting(10, 20)
    assert bench.tokens["bad"] == []
    bench.run(request("after", (2, 3), max_tokens=4))
    assert bench.tokens["after"] == counting(3, 4)


def test_a_failed_request_leaves_nothing_to_reuse() -> None:
    bench = Bench(apart(poison=20), check=False).run(request("a", (10,), max_tokens=20))
    assert bench.tokens["a"] == counting(10, 10)
    assert bench.failed["a"].error.status == 500
    assert not len(bench.loop.runner.caches.kept)
    assert bench.loop.runner.caches.nbytes == 0


def test_a_stop_matcher_that_raises_ends_its_request_alone() -> None:
    good, bad = request("good", prompt(9)), request("bad", prompt(8, 2), stop=Broken(after=4))
    bench = Bench(loop_of("llama")).run(bad, good).proven("llama", good)
    assert bench.failed["bad"].error.code == "engine.step"
    assert len(bench.tokens["bad"]) == 4


def test_a_stop_matcher_that_raises_while_alone_and_speculating() -> None:
    bench = Bench(loop_of("qwen3_next"))
    free = request(max_tokens=30)
    bench.loop.use_drafters([Scripted(13, plain("qwen3_next", free), [2, 4])])
    bench.run(request(stop=Broken(after=5)))
    assert bench.failed["a"].error.code == "engine.step"
    bench.run(request("b")).proven("qwen3_next", request("b"))


def raising(drafter: Drafter, method: str, after: int) -> Drafter:
    """The drafter, whose method raises from its `after`-th call on; `raised`: it did."""
    work, calls = getattr(drafter, method), itertools.count()
    drafter.raised = False

    def answer(*asked: object) -> object:
        if next(calls) >= after:
            drafter.raised = True
            raise RuntimeError("no idea")
        return work(*asked)

    setattr(drafter, method, answer)
    return drafter


@pytest.mark.parametrize(("method", "after"), [("draft", 0), ("draft", 3), ("observe", 0)])
def test_a_drafter_that_raises_costs_the_request_nothing_but_its_drafts(
    method: str, after: int
) -> None:
    loop = loop_of("llama")
    rounds = [None] * after + [2, 4]
    loop.use_drafters([raising(Scripted(13, plain("llama", request()), rounds), method, after)])
    bench = Bench(loop).run(request()).proven("llama")
    assert bench.finished["a"].reason is FinishReason.LENGTH
    reason = bench.stats().speculation
    assert reason.code == "spec.off.drafter_failed"
    assert "no idea" in str(reason.params["detail"])


def test_a_drafter_that_raises_in_the_middle_is_disabled_and_reported() -> None:
    loop = loop_of("llama")
    drafter = raising(Scripted(13, plain("llama", request()), [2, 4]), "observe", 1)
    loop.use_drafters([drafter])
    bench = Bench(loop).submit(request()).until(lambda: drafter.raised)
    row = loop.scheduler.running[0]
    tallies = loop.scheduler.speculator.stats(row.id)
    before = copy.deepcopy(tallies)
    bench.run().proven("llama")
    assert tallies == before, "a disabled drafter is not counted"
    assert bench.stats().speculation.code == "spec.on"
    gate = bench.stats().gates["scripted"]
    assert (gate.state, gate.reason and gate.reason.code) == ("off", "spec.off.drafter_failed")


def counted_with(*drafters: Drafter) -> Bench:
    """A count that begins for the second time, so that lookups know it too, with these drafters; it
    must come right.
    """
    loop = build_loop(Counting(), VOCAB, LIMITS)
    loop.use_drafters([*drafters])
    once_more = request("a", (*range(VOCAB), *range(5)), max_tokens=40, speculation=Speculation())
    bench = Bench(loop).run(once_more)
    assert bench.tokens["a"] == counting(4, 40)
    return bench


def scripted(*rounds: int | None) -> Scripted:
    return Scripted(VOCAB + 5, counting(4, 40), rounds)


def failed_gates(bench: Bench) -> set[str]:
    reasons = {name: gate.reason for name, gate in bench.stats().gates.items() if gate.reason}
    return {name for name, why in reasons.items() if why.code == "spec.off.drafter_failed"}


@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("method", ["propose", "draft", "observe"])
def test_a_drafter_that_raises_leaves_the_other_drafting(method: str, after: int) -> None:
    bench = counted_with(raising(scripted(2, None, 4, None, 1), method, after), NgramDrafter())
    assert failed_gates(bench) == {"scripted"}
    assert bench.stats().drafters["ngram"].accepted > 0
    assert bench.stats().gates["ngram"].state == "on"
    assert bench.stats().speculation.code == "spec.on"
    bench = counted_with(raising(NgramDrafter(), method, after), scripted(2, None, 4))
    assert failed_gates(bench) == {"ngram"}
    assert bench.stats().drafters["scripted"].accepted > 0


def test_a_lookup_that_does_not_say_what_it_would_propose_is_not_followed() -> None:
    lookup = NgramDrafter()
    lookup.propose = lambda _, limit, clause: (
        Proposal("ngram", limit, match=3, clause=clause) if limit > 0 else None
    )
    loop = build_loop(Counting(), VOCAB, LIMITS)
    loop.use_drafters([lookup])
    bench = Bench(loop).run(request("a", tuple(range(5)), max_tokens=20, speculation=Speculation()))
    assert bench.tokens["a"] == counting(4, 20)
    assert failed_gates(bench) == set()


def test_what_others_hold_or_keep_is_proven_when_a_drafter_raises() -> None:
    guilty, other = scripted(), scripted()
    other.name = "other"
    counted_with(raising(guilty, "draft", 2), other)
    assert guilty.entries[:2] == ["drop 1", "clear"]
    assert other.entries == ["store 1", "drop 1"]
    assert other.accepted


def test_all_drafters_are_disabled_where_it_is_unknown_which_one_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = scripted()
    monkeypatch.setattr(RowPolicy, "choose", lambda *_: 1 / 0)
    bench = counted_with(drafter, NgramDrafter())
    assert failed_gates(bench) == {"scripted", "ngram"}
    assert drafter.entries[:2] == ["drop 1", "clear"]
    assert bench.stats().speculation.code == "spec.off.drafter_failed"


def test_what_a_drafter_held_when_it_raised_is_not_kept() -> None:
    loop = build_loop(Counting(), VOCAB, LIMITS)
    drafter = DraftModel("counting", Counting(frozenset({30})), VOCAB, cache_maker(Counting()))
    loop.use_drafters([drafter])
    bench = Bench(loop).run(request("a", (10,), max_tokens=30))
    assert bench.tokens["a"] == counting(10, 30)
    assert drafter.nbytes == 0
    bench.run(request("b", (41, 42), max_tokens=10))
    assert bench.stats("b").accepted > 0
    assert drafter.nbytes > 0


def test_a_prefix_that_a_draft_could_not_keep_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recurrent drafts keep a prompt while they read it."""

    def full(cache: object, pieces: object) -> None:
        raise MemoryError("no room")

    loop, hybrid = loop_of("llama"), model("qwen3_next")
    one, again = (request(name, prompt(40), stable=30, max_tokens=12) for name in "ab")
    drafter = DraftModel("hybrid", hybrid, zoo.VOCAB_SIZE, cache_maker(hybrid))
    loop.use_drafters([drafter])
    with monkeypatch.context() as now:
        now.setattr(drafter._prefixes._kept, "keep", full)
        bench = Bench(loop).run(one)
    assert bench.stats("a").speculation.code == "spec.off.drafter_failed"
    bench.run(again).proven("llama")
    assert bench.stats("b").speculation.code == "spec.on"


def stuck_target() -> EngineLoop:
    """A target whose cache claims to be taken back and is not, though nothing turned speculation
    off.
    """
    loop = build_loop(Counting(make_cache=lambda: [StuckCache()]), VOCAB, LIMITS)
    loop.use_drafters([Scripted(1, counting(10, 40), [4, 1])])
    return loop


def test_a_rewind_that_fails_ends_its_request() -> None:
    bench = Bench(stuck_target(), check=False).run(request("a", (10,), max_tokens=30))
    assert bench.failed["a"].error.code == "rewind.failed"
    assert bench.tokens["a"] == counting(10, 7)
    bench.loop.use_drafters([])
    bench.run(request("b", (10,), max_tokens=5))
    assert bench.tokens["b"] == counting(10, 5)


def test_sampling_that_no_filter_accepts_ends_its_request_alone() -> None:
    bench = Bench(loop_of("llama"), check=False)
    bad = request("bad", prompt(5, 1), Sampling(temperature=1.0, repetition_penalty=-1.0))
    bench.submit(request("good")).until(lambda: len(bench.tokens["good"]) > 3)
    bench.run(bad).proven("llama", request("good"))
    assert bench.failed["bad"].error.status == 500


def test_a_batch_continues_when_one_of_its_rows_fails() -> None:
    rows = [request(f"{i}", prompt(7, i), max_tokens=20) for i in range(3)]
    rows[1] = replace(rows[1], stop=Broken(after=6))
    bench = Bench(loop_of("recurrent_gemma")).run(*rows)
    assert bench.failed["1"].error.code == "engine.step"
    bench.proven("recurrent_gemma", rows[0], rows[2])


DAMAGE = {"nan": math.nan, "infinite": math.inf, "too large": 3e38}


def damaged(name: str, value: float) -> nn.Module:
    """A copy of a tiny model with `value` in one row of its last layer's first matrix."""
    broken = copy.deepcopy(model(name))
    matrices = [module for module in broken.layers[-1].modules() if isinstance(module, nn.Linear)]
    weight = matrices[0].weight
    weight[0] = mx.full(weight[0].shape, value, weight.dtype)
    return broken


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", few(("llama", "qwen3_next", "gemma3_text", "falcon_h1"), "llama", "qwen3_next")
)
def test_a_damaged_model_fails_its_requests_and_caches_nothing(name: str, damage: str) -> None:
    loop = loop_of(damaged(name, DAMAGE[damage]), draft=noisy(name))
    for number in range(2):
        bench = Bench(loop).run(
            request("a", prompt(40), stable=32),
            unassisted(request("b", prompt(40, salt=1))),
            request("c", prompt(24), speculation=Speculation()),
        )
        assert not bench.finished, number
        assert {type(failed.error) for failed in bench.failed.values()} == {NonFiniteLogits}
        assert [failed.error.code for failed in bench.failed.values()] == ["engine.not_finite"] * 3
        assert not any(bench.tokens.values())
    assert loop.scheduler.prefix.index.nbytes == 0


def test_a_passing_fault_fails_what_ran_and_leaves_the_model_sound() -> None:
    broken = damaged("llama", math.nan)
    sound = model("llama")
    loop = loop_of(broken)
    bench = Bench(loop).run(request(tokens=prompt(40), stable=32))
    broken.update(sound.parameters())
    again = unassisted(request("again", prompt(40), stable=32))
    bench.run(again).proven("llama", again)
    assert bench.stats("again").cached_n == 0
