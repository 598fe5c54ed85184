"""Rounds of every outcome in turn: rejected at every place, all accepted, no draft, a stop."""

from __future__ import annotations

from itertools import chain

import pytest

from omlx.engine.speculation.cost_model import LatencyTable
from omlx.engine.types import FinishReason, Request, Sampling
from tests.engine.fakes import Scripted, StopAt
from tests.engine.harness import (
    FEW_HEATED,
    KINDS,
    Bench,
    label,
    loop_of,
    plain,
    prompt,
    request,
    stored_length,
    unassisted,
)
from tests.lanes import few

REJECT_EVERYWHERE = [0, 1, 2, 3, 4, None, 0, None, None, 4, 0, 4, 4, None, 2, 0, 0, 0, 1, None]


def bench_of(
    family: str, one: Request, rounds: list[int | None], window: int = 4
) -> tuple[Bench, Scripted]:
    loop = loop_of(family, window=window)
    drafter = Scripted(len(one.tokens), plain(family, unassisted(one)), rounds)
    loop.use_drafters([drafter])
    return Bench(loop), drafter


@pytest.mark.parametrize(("family", "sampling"), FEW_HEATED, ids=label)
def test_reject_everywhere_then_all_then_none_then_reject_then_reuse(
    family: str, sampling: Sampling
) -> None:
    one = request(tokens=prompt(13), sampling=sampling, max_tokens=48)
    bench, drafter = bench_of(family, one, list(REJECT_EVERYWHERE))
    bench.run(one).proven(family, one)
    assert drafter.accepted == drafter.expected
    assert {0, 1, 2, 3, 4} <= set(drafter.accepted)
    conversation = [*one.tokens, *bench.tokens["a"]]
    length = stored_length(bench.loop, conversation)
    assert length >= len(conversation) - 1 - 5


@pytest.mark.parametrize("family", few(KINDS, "gpt_oss", "lfm2"))
@pytest.mark.parametrize("place", [0, 3])
def test_a_stop_token_inside_the_accepted_run_ends_there_and_the_rest_is_reusable(
    family: str, place: int
) -> None:
    free = request(tokens=prompt(13), max_tokens=40)
    answer = plain(family, free)
    # Rounds of five tokens from 0: the stop is `place` tokens into the round that starts at 20.
    stop = answer[20 + place]
    end = answer.index(stop) + 1
    one = request(tokens=prompt(13), max_tokens=40, stop_ids=frozenset({stop}))
    bench, drafter = bench_of(family, free, [])
    bench.run(one)
    assert bench.tokens["a"] == answer[:end]
    finished = bench.finished["a"]
    assert (finished.reason, finished.stopped_by) == (FinishReason.STOP, stop)
    assert drafter.accepted[:-1] == drafter.expected[:-1]
    assert bench.stats().accepted == bench.drafted("a") <= end
    follow_up = request("b", (*one.tokens, *answer[:end], 17, 4), max_tokens=12)
    bench.run(follow_up).proven(family, follow_up)
    assert bench.stats("b").cached_n > 0


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
def test_a_stop_string_inside_the_accepted_run_ends_there(family: str) -> None:
    free = request(tokens=prompt(13), max_tokens=40)
    answer = plain(family, free)
    matcher = StopAt(answer[22])
    end = answer.index(answer[22]) + 1
    bench, _ = bench_of(family, free, [4, 4, 4, 2, 1])
    bench.run(request(tokens=prompt(13), max_tokens=40, stop=matcher))
    assert bench.tokens["a"] == matcher.seen == answer[:end]
    assert bench.finished["a"].reason is FinishReason.STOP
    assert bench.finished["a"].stopped_by is None
    stored_length(bench.loop, [*prompt(13), *answer[:end]])


@pytest.mark.parametrize("family", ["qwen3_next", "recurrent_gemma"])
@pytest.mark.parametrize("right", few((0, 1, 2), 1))
def test_pending_stays_bounded_when_every_draft_is_half_wrong(family: str, right: int) -> None:
    window = 5
    one = request(tokens=prompt(7), max_tokens=60)
    bench, drafter = bench_of(family, one, [right] * 60, window)
    bench.submit(one)
    while bench.loop.has_work:
        bench.step()
        read = (row for row in bench.loop.scheduler.running if row.unread == 0)
        assert all(row.pending - row.unverified <= 12 + 1 + window for row in read)
    bench.proven(family)
    assert drafter.accepted == drafter.expected
    assert bench.stats().drafters["scripted"].repairs.get("restore", 0) > 5


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "lfm2"])
def test_a_prompt_of_one_token_is_served(family: str) -> None:
    one = request(tokens=(5,), max_tokens=20)
    bench, _ = bench_of(family, one, [0, 4, 1, None, 0])
    bench.run(one).proven(family, one)


def test_what_stays_pending_is_timed_under_the_width_of_the_pass_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    widths: list[int] = []
    monkeypatch.setattr(
        LatencyTable, "learn", lambda _, width, context, seconds: widths.append(width) or True
    )
    one = request(tokens=prompt(13), max_tokens=20)
    bench, _ = bench_of("qwen3_next", one, [0, 0, None, 1, None])
    bench.run(one)
    windows = chain.from_iterable(plan.windows for plan in bench.plans)
    assert [window.width for window in windows if window.sample and not window.draft_n] == [3, 3]
    assert (widths.count(3), widths.count(1)) == (2, 0)
