"""A draft equal to its target is accepted up to its first corrupted token, every round.

Output alone cannot tell a draft whose cache was rewound wrong: verification repairs it, and only
acceptance falls.
"""

from __future__ import annotations

from itertools import product

import pytest

from omlx.engine.types import Sampling
from tests.engine.fakes import Corrupted
from tests.engine.harness import (
    GREEDY,
    KINDS,
    WARM,
    Bench,
    label,
    loop_of,
    model,
    padded,
    prompt,
    request,
)
from tests.lanes import few


def scattered(position: int) -> bool:
    """Wrong places such that rounds of 4 to 8 tokens are cut everywhere, and some not at all."""
    return position % 7 == 3 or position % 19 in (0, 1)


@pytest.mark.parametrize(
    ("family", "sampling", "draft_model", "window"),
    few(
        product(KINDS, (GREEDY, WARM), ("same", "padded"), (2, 3, 4, 5, 8, 12)),
        ("llama", WARM, "same", 5),
        ("gemma3_text", GREEDY, "same", 5),
        ("recurrent_gemma", WARM, "same", 5),
    ),
    ids=label,
)
def test_accepted_count_is_the_first_corruption_every_round(
    family: str, sampling: Sampling, draft_model: str, window: int
) -> None:
    draft = padded(family) if draft_model == "padded" else model(family)
    drafter = Corrupted(draft, scattered)
    loop = loop_of(family, window=window)
    loop.use_drafters([drafter])
    one = request(sampling=sampling, tokens=prompt(13), max_tokens=56)
    Bench(loop).run(one).proven(family, one)
    assert drafter.accepted == drafter.expected
    assert len(set(drafter.accepted)) > min(window, 3)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
def test_a_wider_vocabulary_of_the_draft_costs_no_acceptance(
    family: str, sampling: Sampling
) -> None:
    bench = Bench(loop_of(family, padded(family))).run(request(sampling=sampling))
    assert bench.stats().accepted == bench.stats().proposed > 20


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
def test_a_wider_vocabulary_of_the_target_costs_no_acceptance_and_changes_no_token(
    sampling: Sampling,
) -> None:
    one = request(sampling=sampling)
    bench = Bench(loop_of(padded("llama"), model("llama"))).run(one).proven("llama", one)
    assert bench.stats().accepted == bench.stats().proposed > 20


@pytest.mark.parametrize("family", few(KINDS, "gemma3_text", "nemotron_h"))
def test_a_draft_catches_up_after_a_second_request_has_come_and_gone(family: str) -> None:
    loop = loop_of(family)
    drafter = Corrupted(model(family), scattered)
    loop.use_drafters([drafter])
    first = request("a", prompt(5), max_tokens=70)
    second = request("b", prompt(9, salt=2), max_tokens=4)
    bench = Bench(loop).submit(first).until(lambda: len(drafter.accepted) >= 3)
    bench.run(second).proven(family, first)
    assert drafter.accepted == drafter.expected
    assert len(drafter.accepted) > 6


def test_stats_count_spans_repairs_and_acceptance_by_position() -> None:
    loop = loop_of("llama", window=4)
    drafter = Corrupted(model("llama"), scattered)
    loop.use_drafters([drafter])
    bench = Bench(loop).run(request(max_tokens=40))
    (stats,) = bench.stats().drafters.values()
    assert stats.rounds == len(drafter.accepted)
    assert sum(stats.spans.values()) == sum(stats.repairs.values()) == stats.rounds
    assert stats.accepted == sum(drafter.accepted) == sum(stats.accepted_at)
    assert list(stats.accepted_at) == [sum(n > i for n in drafter.accepted) for i in range(4)]
    assert stats.spans["first_reject"] == drafter.accepted.count(0)
    assert stats.accepted == bench.drafted("a")
