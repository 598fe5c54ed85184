"""Tokens equal plain decoding of the same request alone under every strategy: lookups, chains,
auto; with predictions that are right, wrong in places or about something else; with windows that
are fixed or adapt.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from lab.bench.drive import fixed_costs, flat
from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import NGRAM, parse
from omlx.engine.types import Request, Sampling, Speculation
from tests import zoo
from tests.engine.harness import (
    GREEDY,
    KINDS,
    WARM,
    Bench,
    corrupted,
    label,
    loop_of,
    model,
    noisy,
    plain,
    prompt,
    request,
    unassisted,
)
from tests.engine.pairs import full_product, in_turn
from tests.lanes import few

BOUNDED = "ngram:n=4,m=24;draft:m=5"
PARAMETERS: dict[str, list[Any]] = {
    "target": list(zoo.MAIN_NAMES),
    "strategy": ["ngram", BOUNDED, "auto"],
    "past": ["perfect", "corrupted", "unrelated", "own"],
    "pace": ["fixed", "flat", "sawtooth"],
    "company": ["alone", "joined", "left"],
    "sampling": [GREEDY, WARM],
}
SPAN = 11
"""A corrupted prediction is wrong once in so many tokens."""

LETTERS = (7, 23, 42)

DRAFT_PRICE = 0.1
"""A draft pass in plain steps: lookups are preferred, and without them the model drafts."""


def sawtooth(width: int) -> float:
    """Kernels work in tiles of 16 rows, so most passes cost more than wider ones."""
    return flat(width) if width == 1 or width % 16 == 0 else flat(width) + 0.3


COSTS = {"flat": flat, "sawtooth": sawtooth}


def tried(
    target: str, strategy: str, past: str, pace: str, company: str, sampling: Sampling
) -> Bench:
    """Run a case and prove its tokens."""
    window = DraftLength.exactly(6) if pace == "fixed" else DEFAULT_DRAFT_LENGTH
    speculation = Speculation(parse(strategy), window)
    if past == "own":
        sampling = replace(sampling, logit_bias=tuple((letter, 80.0) for letter in LETTERS))
    first = request("first", prompt(13), sampling, max_tokens=56, speculation=speculation)
    length = 8 if company == "left" else 24
    second = request("second", prompt(21, 1), sampling, length, speculation=speculation)
    costs = fixed_costs(COSTS[pace], "tiny", DRAFT_PRICE) if pace in COSTS else CostModel()
    draft = noisy(target) if strategy == "auto" else model(target)
    bench = Bench(loop_of(target, draft, costs=costs))
    both = (expecting(target, past, one) for one in (first, second))
    return bench.prove(target, company, *both, meet=20)


def expecting(target: str, past: str, one: Request) -> Request:
    """The request with a prediction of its answer.

    Without one its answer has three letters and repeats itself.
    """
    answer = plain(target, unassisted(one))
    wrong = corrupted(answer, lambda i: i % SPAN == SPAN - 3)
    predictions = {"perfect": answer, "corrupted": wrong, "own": ()}
    predictions["unrelated"] = prompt(60, salt=5)
    return replace(one, speculation=replace(one.speculation, prediction=tuple(predictions[past])))


def exact(
    target: str, strategy: str, past: str, pace: str, company: str, sampling: Sampling
) -> None:
    bench = tried(target, strategy, past, pace, company, sampling)
    stats = bench.stats("first")
    assert set(stats.drafters) <= ({"ngram"} if strategy == "ngram" else {"ngram", "tiny"})
    useful = past != "unrelated"
    if useful or strategy != "ngram":
        assert stats.speculation.code == "spec.on"
        assert stats.proposed > 0
    if useful and company != "joined" and (strategy == "ngram" or pace == "fixed"):
        lookups = stats.drafters["ngram"]
        assert past == "own" or lookups.accepted > 0
        assert (past, company) != ("corrupted", "alone") or lookups.proposed > lookups.accepted
    # A perfect draft, if its cache was kept in step.
    if strategy == BOUNDED and "tiny" in stats.drafters:
        assert stats.drafters["tiny"].accepted == stats.drafters["tiny"].proposed


def named(case: dict[str, Any]) -> str:
    return "-".join("chain" if value == BOUNDED else label(value) for value in case.values())


@pytest.mark.parametrize("case", in_turn(PARAMETERS), ids=named)
def test_tokens_equal_plain_decoding(case: dict[str, Any]) -> None:
    exact(**case)


@pytest.mark.slow
@pytest.mark.parametrize("case", full_product(PARAMETERS), ids=named)
def test_tokens_equal_plain_decoding_in_every_combination(case: dict[str, Any]) -> None:
    exact(**case)


@pytest.mark.parametrize(
    "target",
    few(("llama", "lfm2", "gemma3_text", "qwen3_next", "recurrent_gemma", "llama4"), "lfm2"),
)
def test_a_draft_that_was_idle_for_300_tokens_of_lookups_catches_up(target: str) -> None:
    one = request(tokens=prompt(13, salt=6), sampling=WARM, max_tokens=360)
    foreseen = 310
    answer = plain(target, unassisted(one))
    speculation = Speculation(parse("ngram;draft"), DEFAULT_DRAFT_LENGTH, tuple(answer[:foreseen]))
    costs = fixed_costs(flat, "tiny", 3 * DRAFT_PRICE)
    bench = Bench(loop_of(target, model(target), costs=costs))
    bench.run(replace(one, speculation=speculation)).proven(target, one)
    rounds = [window for window in bench.windows if window.drafter == "tiny"]
    places = [w.start + w.pending - len(one.tokens) for w in rounds]
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    assert max(gaps) >= 280
    assert len([place for place in places if place >= foreseen]) >= 3
    drafts = bench.stats().drafters["tiny"]
    assert drafts.accepted == drafts.proposed


def test_no_draft_is_shorter_than_asked_for() -> None:
    speculation = Speculation(parse("draft:min=6"), DEFAULT_DRAFT_LENGTH)
    one = request(tokens=prompt(13), sampling=WARM, max_tokens=56, speculation=speculation)
    costs = fixed_costs(flat, "tiny", DRAFT_PRICE)
    bench = Bench(loop_of("llama", model("llama"), costs=costs)).run(one).proven("llama", one)
    lengths = [window.draft_n for window in bench.windows if window.draft_n]
    assert lengths[0] == 6
    assert min(lengths) == 6


@pytest.mark.parametrize("target", few(KINDS, "llama", "gemma3_text", "falcon_h1"))
def test_a_stop_inside_a_lookup_leaves_a_conversation_that_can_go_on(target: str) -> None:
    speculation = Speculation(NGRAM, DEFAULT_DRAFT_LENGTH)
    one = request("a", prompt(13), WARM, max_tokens=56, speculation=speculation)
    answer = plain(target, unassisted(one))
    foreseen = expecting(target, "perfect", one)
    whole = Bench(loop_of(target, costs=fixed_costs(sawtooth))).run(foreseen)
    drafted: list[int] = []  # positions in the answer
    for launched in whole.windows:
        first_drafted = launched.start + launched.pending - len(one.tokens)
        drafted += range(first_drafted, first_drafted + launched.draft_n - 1)
    stop = next(answer[i] for i in reversed(drafted) if answer[i] not in answer[:i])
    first = replace(foreseen, stop_ids=frozenset({stop}))
    bench = Bench(loop_of(target, costs=fixed_costs(sawtooth))).run(first)
    assert bench.tokens["a"] == answer[: answer.index(stop) + 1]
    assert bench.stats().drafters["ngram"].spans["stopped"] == 1
    turn = (*first.tokens, *bench.tokens["a"], 11, 12)
    again = replace(one, id="again", tokens=turn, max_tokens=24)
    bench.run(expecting(target, "perfect", again)).proven(target, again)
    stats = bench.stats("again")
    # Recurrent layers were last exact at the start of the stopped window, which may be wide.
    assert stats.cached_n >= (
        len(one.tokens) if bench.loop.runner.traits.recurrent else stats.prompt_n - 6
    )
    assert stats.drafters["ngram"].accepted > 0
