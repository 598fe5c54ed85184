"""Rows that end or join while the next step is in flight: caches hold what was committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.engine.types import FinishReason, Request
from tests.engine.fakes import Corrupted, StopAt
from tests.engine.harness import (
    KINDS,
    LIMITS,
    Bench,
    loop_of,
    model,
    plain,
    prompt,
    request,
    stored_length,
)
from tests.lanes import few

LENGTHS = {"a": 13, "b": 6, "c": 20}


def named(name: str, **more: object) -> Request:
    return request(name, prompt(LENGTHS[name], salt=ord(name) % 7), max_tokens=30, **more)


def stopping(family: str, name: str, at: int, how: str) -> tuple[Request, list[int]]:
    """A request that ends at its token `at`, by a stop id or a stop string, and what it says."""
    answer = plain(family, named(name))
    end = answer.index(answer[at]) + 1
    stops = {"id": {"stop_ids": frozenset({answer[at]})}, "string": {"stop": StopAt(answer[at])}}
    return named(name, **stops[how]), answer[:end]


def in_flight(bench: Bench, name: str) -> bool:
    """Whether a token of this request is sampled but not read: a step is in flight."""
    return any(s.request.id == name and s.unread == 1 for s in bench.loop.scheduler.running)


@pytest.mark.parametrize("how", ["id", "string"])
@pytest.mark.parametrize("family", few(KINDS, "llama4", "nemotron_h"))
def test_a_stop_of_plain_decoding_leaves_what_was_committed(family: str, how: str) -> None:
    one, said = stopping(family, "a", 9, how)
    bench = Bench(loop_of(family)).run(one)
    assert bench.tokens["a"] == said
    assert bench.finished["a"].reason is FinishReason.STOP
    conversation = [*one.tokens, *said]
    assert stored_length(bench.loop, conversation) == len(conversation)


@pytest.mark.parametrize("family", few(KINDS, "gemma3_text", "qwen3_next"))
def test_a_stop_in_company_leaves_both_conversations_whole(family: str) -> None:
    one, said = stopping(family, "a", 9, "id")
    bench = Bench(loop_of(family)).run(one, named("b"), named("c"))
    assert bench.tokens["a"] == said
    bench.proven(family, named("b"), named("c"))
    for name in "abc":
        stored_length(bench.loop, [*named(name).tokens, *bench.tokens[name]])


@pytest.mark.parametrize("family", few(KINDS, "llama", "recurrent_gemma"))
def test_a_cancel_lands_within_two_steps_and_leaves_what_was_committed(family: str) -> None:
    bench = Bench(loop_of(family)).submit(named("a"))
    bench.until(lambda: len(bench.tokens["a"]) >= 5 and in_flight(bench, "a"))
    bench.loop.cancel("a")
    steps = bench.steps
    bench.until(lambda: "a" in bench.finished)
    assert bench.steps - steps <= 2
    assert bench.finished["a"].reason is FinishReason.CANCELLED
    bench.run().proven(family, cancelled="a")
    conversation = [*named("a").tokens, *bench.tokens["a"]]
    assert stored_length(bench.loop, conversation) >= len(conversation) - 1


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
def test_a_row_of_a_batch_that_is_cancelled_frees_its_place_and_leaves_the_others_alone(
    family: str,
) -> None:
    bench = Bench(loop_of(family)).submit(named("a"), named("b"), named("c"))
    bench.until(lambda: all(len(bench.tokens[name]) >= 4 for name in "abc"))
    bench.loop.cancel("b")
    bench.run().proven(family, cancelled="b")
    stored_length(bench.loop, [*named("b").tokens, *bench.tokens["b"]])


def test_cancelled_while_waiting_while_reading_its_prompt_and_when_gone() -> None:
    bench = Bench(loop_of("llama")).submit(named("a"))
    bench.loop.cancel("a")
    bench.run()
    assert bench.finished["a"].reason is FinishReason.CANCELLED
    assert bench.stats("a").predicted_n == 0
    long = request("b", prompt(300, 3))
    bench.submit(long).step()
    bench.loop.cancel("b")
    bench.loop.cancel("a")
    bench.loop.cancel("unknown")
    bench.run()
    assert bench.finished["b"].reason is FinishReason.CANCELLED
    assert stored_length(bench.loop, long.tokens) == 299


@pytest.mark.parametrize("family", few(KINDS, "gpt_oss", "falcon_h1"))
def test_a_join_while_a_step_is_in_flight_changes_no_tokens(family: str) -> None:
    bench = Bench(loop_of(family)).submit(named("a"))
    bench.until(lambda: len(bench.tokens["a"]) >= 5 and in_flight(bench, "a"))
    bench.submit(named("b")).until(lambda: len(bench.tokens["b"]) >= 3 and in_flight(bench, "b"))
    bench.run(named("c")).proven(family)


@pytest.mark.parametrize("family", few(KINDS, "llama", "qwen3_next", "recurrent_gemma"))
def test_a_cancel_while_a_draft_is_verified_leaves_what_can_be_continued(family: str) -> None:
    loop, after = loop_of(family), 2 + KINDS.index(family) % 4
    drafter = Corrupted(model(family), lambda position: position % 5 == 2)
    loop.use_drafters([drafter])
    bench = Bench(loop).submit(named("a")).until(lambda: len(drafter.expected) == after)
    loop.cancel("a")
    bench.run()
    assert bench.finished["a"].reason is FinishReason.CANCELLED
    conversation = (*named("a").tokens, *bench.tokens["a"])
    follow_up = request("b", (*conversation, 8, 9), max_tokens=14)
    bench.run(follow_up).proven(family, follow_up)
    assert bench.stats("b").cached_n >= len(named("a").tokens) - 1
    assert drafter.accepted == drafter.expected


@pytest.mark.parametrize("drafts", [False, True])
def test_a_first_token_is_delivered_before_the_next_launch(drafts: bool) -> None:
    """On a CPU a launch waits for the device."""
    draft = model("llama") if drafts else None
    bench = Bench(loop_of("llama", draft)).submit(named("a"))
    bench.until(lambda: bool(bench.tokens["a"]))
    assert not in_flight(bench, "a")


def test_urgent_requests_start_beside_a_batch_that_waits() -> None:
    """The rows of the batch wait for both first tokens; no row joins a batch that waits."""
    loop = loop_of("llama", limits=replace(LIMITS, max_rows=4, pause_s=0.05))
    asked = {
        name: request(name, prompt(13, i), max_tokens=30, priority=10 * (i < 2))
        for i, name in enumerate(("slow", "other", "typed", "second"))
    }
    bench = Bench(loop).submit(asked["slow"], asked["other"])
    bench.until(lambda: len(bench.tokens["slow"]) > 5 and len(bench.tokens["other"]) > 5)
    assert len(loop.scheduler.batch.members) == 2
    bench.run(asked["typed"], asked["second"]).proven("llama")
