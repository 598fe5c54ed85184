"""Structured output: every strategy says what plain decoding under the same mask says."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import mlx.core as mx
import pytest

from omlx.engine.device.sampling import permit
from omlx.engine.speculation.strategy import OFF, parse
from omlx.engine.step.masking import (
    allowed_prefix,
    forced_tokens,
    lookahead,
    masks_along,
    only_token,
)
from omlx.engine.step.plan import LAST
from omlx.engine.types import FinishReason, Request, Sampling, Speculation, TokensCommitted
from tests import zoo
from tests.engine.fakes import Scripted
from tests.engine.harness import (
    GREEDY,
    WARM,
    Bench,
    decode,
    label,
    loop_of,
    model,
    noisy,
    prompt,
    request,
)
from tests.engine.masks import LateRule, Rule, Ruled, formal, only_even, thirds, until
from tests.lanes import few

PENALISED = replace(WARM, repetition_penalty=1.3, presence_penalty=0.5, logit_bias=((3, 4.0),))
REPEATING = prompt(6) * 4


def masked(rule: Rule, name: str = "a", strategy: str = "draft", **more) -> Request:
    return request(name, mask=Ruled(rule), speculation=Speculation(parse(strategy)), **more)


def expected(of: Request, rule: Rule, family: str = "llama") -> list[int]:
    return decode(model(family), replace(of, mask=Ruled(rule), speculation=Speculation(OFF)))


class Standing(Bench):
    """Proves after every step that each mask stands at what is committed."""

    def step(self) -> list:
        before = {
            s.request.id: s.request
            for s in [*self.loop.scheduler.queue.waiting, *self.loop.scheduler.running]
        }
        events = super().step()
        for name, of in before.items():
            if isinstance(of.mask, Ruled) and name not in self.failed:
                said = [token for token in self.tokens[name] if token not in of.stop_ids]
                assert of.mask.tokens == said
        return events


@pytest.mark.parametrize(
    "rule", [thirds, formal, until(formal, 17)], ids=["thirds", "formal", "ending"]
)
@pytest.mark.parametrize("strategy", few(("off", "draft", "ngram", "auto"), "draft", "auto"))
@pytest.mark.parametrize(
    "sampling", few((GREEDY, WARM, PENALISED), PENALISED), ids=["cold", "warm", "penal"]
)
def test_every_strategy_says_what_plain_decoding_under_the_mask_says(
    sampling: Sampling, strategy: str, rule: Rule
) -> None:
    of = masked(rule, strategy=strategy, sampling=sampling, tokens=REPEATING)
    bench = Standing(loop_of("llama", noisy("llama"))).run(of)
    assert bench.tokens["a"] == expected(of, rule)
    if strategy == "off":
        assert bench.stats().drafters == {}
    else:
        assert ("forced" in bench.stats().drafters) == (rule is not thirds)


@pytest.mark.parametrize(
    ("strategy", "rows"), few([("off", 1), ("draft", 1), ("auto", 2)], ("auto", 2))
)
def test_a_mask_that_is_free_for_now_costs_no_barrier_and_changes_no_token(
    strategy: str, rows: int
) -> None:
    def run(*, open: bool) -> Bench:
        bench = Bench(loop_of("llama", noisy("llama")))
        for name in "ab"[:rows]:
            mask = LateRule(formal, 80, open=open)
            speculation = Speculation(parse(strategy))
            bench.submit(request(name, prompt(9), WARM, 90, mask=mask, speculation=speculation))
        return bench.run()

    free, bound = run(open=True), run(open=False)
    assert free.tokens == bound.tokens
    assert all(len(tokens) == 90 for tokens in free.tokens.values())
    if strategy == "off":
        assert in_flight(free) > 8
        assert in_flight(bound) == 0


def in_flight(bench: Bench) -> int:
    """How many steps were launched before the one before was read."""
    return sum(window.tokens == LAST for window in bench.windows)


@pytest.mark.parametrize("family", ["qwen3_next", "gemma3_text", "mamba2", "recurrent_gemma"])
def test_caches_of_every_kind_go_back_under_a_mask(family: str) -> None:
    of = masked(formal, sampling=WARM)
    bench = Standing(loop_of(family, noisy(family))).run(of)
    assert bench.tokens["a"] == expected(of, formal, family)
    assert bench.stats().accepted > 0


@pytest.mark.parametrize("sampling", few((GREEDY, WARM), WARM), ids=label)
@pytest.mark.parametrize("company", ["joined", "left"])
def test_a_row_beside_is_not_touched(company: str, sampling: Sampling) -> None:
    of = masked(formal, sampling=sampling, max_tokens=40)
    other = request("b", prompt(9, 2), sampling, 40)
    bench = Standing(loop_of("llama", noisy("llama")))
    bench.submit(of)
    if company == "joined":
        bench.until(lambda: len(bench.tokens["a"]) >= 6)
    bench.run(other)
    assert bench.tokens["a"] == expected(of, formal)
    bench.proven("llama", other)
    forwards = chain.from_iterable(plan.forwards for plan in bench.plans)
    assert any(forward.batched for forward in forwards)


def test_what_must_come_is_drafted_for_nothing_and_all_of_it_is_accepted() -> None:
    of = masked(formal, strategy="ngram", tokens=prompt(13))
    bench = Bench(loop_of("llama", window=None)).run(of)
    stats = bench.stats().drafters["forced"]
    assert stats.proposed == stats.accepted == 15  # five of each ten
    assert stats.spans == {"full": 3}
    assert bench.stats().gates["forced"].state == "on"
    assert len(bench.plans) < 30


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PENALISED], ids=["cold", "warm", "penalised"])
def test_a_draft_model_draws_under_the_same_mask(sampling: Sampling) -> None:
    """The target as its own draft is always right, so it was bound by the same masks."""
    of = masked(thirds, sampling=sampling)
    bench = Standing(loop_of("llama", model("llama"))).run(of)
    drafted = bench.stats().drafters["tiny"]
    assert drafted.proposed == drafted.accepted > 20
    assert bench.tokens["a"] == expected(of, thirds)


def test_off_is_off() -> None:
    bench = Bench(loop_of("llama", window=None)).run(masked(formal, strategy="off"))
    assert bench.stats().drafters == {}
    assert bench.stats().speculation.code == "spec.off.requested"


def test_a_draft_is_cut_where_the_mask_forbids_it() -> None:
    """A drafter of odd ids has no proposal where only even ones are allowed."""
    of = masked(only_even, strategy="ngram", tokens=tuple(range(1, 21, 2)) * 3, max_tokens=12)
    bench = Bench(loop_of("llama")).run(of)
    drafts = [window.draft for window in bench.windows if window.draft]
    assert all(token % 2 == 0 for token in chain.from_iterable(drafts))
    assert bench.tokens["a"] == expected(of, only_even)


def test_a_draft_against_the_mask_is_rejected_where_it_goes_wrong() -> None:
    of = masked(thirds, max_tokens=20)
    answer = expected(of, thirds)
    loop = loop_of("llama")
    drafter = Scripted(len(of.tokens), answer, [2, 0, None, 4, 1])
    loop.use_drafters([drafter])
    bench = Standing(loop).run(of)
    assert bench.tokens["a"] == answer
    assert drafter.accepted == drafter.expected


def test_a_row_with_a_mask_is_never_in_flight_while_the_next_step_is_planned() -> None:
    bench = Bench(loop_of("llama")).run(masked(thirds, strategy="off"))
    assert not any(window.tokens == LAST for window in bench.windows)
    other = Bench(loop_of("llama")).run(request(speculation=Speculation(OFF)))
    assert any(window.tokens == LAST for window in other.windows)


def test_the_end_of_what_may_come_ends_the_request() -> None:
    bench = Bench(loop_of("llama")).run(masked(until(thirds, 7)))
    assert len(bench.tokens["a"]) == 7
    assert bench.finished["a"].reason is FinishReason.STOP
    assert bench.finished["a"].stopped_by is None


def test_max_tokens_cut_what_has_a_form_as_anything_else() -> None:
    bench = Bench(loop_of("llama", noisy("llama"))).run(masked(formal, max_tokens=8))
    assert len(bench.tokens["a"]) == 8
    assert bench.finished["a"].reason is FinishReason.LENGTH


def test_a_mask_that_raises_ends_its_row_alone() -> None:
    broken = request("broken", mask=Ruled(thirds, breaks_at=9), max_tokens=20)
    other = request("b", prompt(9, 2), max_tokens=30)
    bench = Bench(loop_of("llama")).run(broken, other)
    assert bench.failed["broken"].error.code == "engine.grammar"
    assert bench.tokens["broken"] == expected(broken, thirds)[:9]
    bench.proven("llama", other)


def test_a_mask_that_fails_while_drafting_is_rolled_back() -> None:
    """The drafter fails first; the row continues without it until its mask fails."""
    broken = request("a", mask=Ruled(thirds, breaks_at=9), max_tokens=20)
    bench = Standing(loop_of("llama", noisy("llama"))).run(broken)
    assert bench.failed["a"].error.code == "engine.grammar"
    assert bench.tokens["a"] == expected(broken, thirds)[:9]


def test_logprobs_are_those_before_the_mask() -> None:
    of = masked(thirds, strategy="off", top_logprobs=3, max_tokens=6)
    bench = Bench(loop_of("llama")).run(of)
    commits = [event for event in bench.events if isinstance(event, TokensCommitted)]
    logprobs = list(chain.from_iterable(event.logprobs or () for event in commits))
    one = request(top_logprobs=3, max_tokens=1, speculation=Speculation(OFF))
    free = Bench(loop_of("llama")).run(one)
    first = next(event for event in free.events if isinstance(event, TokensCommitted))
    assert logprobs[0].top == first.logprobs[0].top
    assert [entry.token for entry in logprobs] == bench.tokens["a"]


def test_looking_ahead_leaves_a_mask_where_it_stood() -> None:
    mask = Ruled(formal)
    run = forced_tokens(mask, 64)
    assert len(run) == 5
    assert forced_tokens(mask, 3) == run[:3]
    rows = masks_along(mask, run)
    assert [only_token(row) for row in rows[:5]] == list(run)
    assert only_token(rows[5]) is None
    assert allowed_prefix(mask, (*run[:2], (run[2] + 1) % zoo.VOCAB_SIZE)) == run[:2]
    with lookahead(mask) as advance:
        assert advance(run[0])
        assert not advance((run[1] + 1) % zoo.VOCAB_SIZE)
    assert mask.tokens == []


def test_rows_behind_the_end_are_free() -> None:
    mask = Ruled(until(thirds, 2))
    draft = allowed_prefix(mask, tuple(expected(masked(thirds, max_tokens=4), thirds)))
    assert len(draft) == 2
    free = [row is None for row in masks_along(mask, (*draft, 1, 1))]
    assert free == [False, False, True, True, True]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 33, 300])
def test_permit_leaves_what_is_allowed(size: int) -> None:
    logits = mx.arange(2 * size).reshape(2, size).astype(mx.float32)
    allowed = {i for i in range(size) if i % 3 == 0}
    bits = bytearray((size + 7) // 8)
    for i in allowed:
        bits[i // 8] |= 1 << i % 8
    rows = permit(logits, [bytes(bits) + b"\xff\xff", None]).tolist()
    assert rows[0] == [float(i) if i in allowed else -float("inf") for i in range(size)]
    assert rows[1] == [float(size + i) for i in range(size)]
