"""Text models of mlx-vlm in the engine: company, drafts and next turns change no token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import DRAFT
from omlx.engine.types import Speculation
from tests import zoo
from tests.engine.harness import (
    GREEDY,
    WARM,
    Bench,
    loop_of,
    noisy,
    plain,
    prompt,
    request,
    unassisted,
)

pytestmark = pytest.mark.needs_extra


@pytest.mark.slow
@pytest.mark.parametrize(("length", "repair"), [(4, "trim"), (12, "restore")])
def test_accepted_tokens_of_short_windows_are_not_read_again(length: int, repair: str) -> None:
    bench = Bench(loop_of("qwen4_exp", noisy("qwen4_exp", 0.05)))
    wanted = Speculation(DRAFT, DraftLength.exactly(length))
    one = replace(request("a", prompt(29), GREEDY, max_tokens=48), speculation=wanted)
    bench.run(one)
    assert bench.tokens["a"] == plain("qwen4_exp", unassisted(one))
    repairs = bench.stats("a").drafters["tiny"].repairs
    assert repairs[repair] > 2
    pending = max(window.pending for window in bench.windows if window.draft_n)
    assert (pending > 1) == (repair == "restore")


@pytest.mark.parametrize("token", [8, 15])
def test_windows_at_the_beginning_of_a_text_are_stepped_back(token: int) -> None:
    """Such windows are read token by token, by qwen4_exp's bodies."""
    bench = Bench(loop_of("qwen4_exp", noisy("qwen4_exp", 0.3)))
    wanted = Speculation(DRAFT, DraftLength.exactly(1))
    one = replace(request("a", (token,), GREEDY, max_tokens=6), speculation=wanted)
    bench.run(one)
    assert bench.tokens["a"] == plain("qwen4_exp", unassisted(one))
    assert bench.stats("a").drafters["tiny"].repairs["trim"] > 0


@pytest.mark.parametrize("name", zoo.BORROWED_CASES)
def test_tokens_equal_plain_decoding(name: str) -> None:
    bench = Bench(loop_of(name, noisy(name, 0.02)))
    first = request("a", prompt(29), GREEDY, max_tokens=26)
    bench.prove(name, "joined", first, request("b", prompt(9, 1), WARM, max_tokens=20))
    assert bench.stats("a").accepted > 5
    tokens = (*first.tokens, *bench.tokens["a"], 5, 6, 7)
    turn = request("c", tokens, WARM, max_tokens=12)
    other = request("d", (*first.tokens, 50, 51, 52), GREEDY, max_tokens=2)
    bench.run(turn)
    bench.run(other)
    for later in (turn, other):
        assert bench.tokens[later.id] == plain(name, unassisted(later)), later.id
    # states and pools are stored where an answer and a prompt end, but for their newest token
    assert bench.stats("c").cached_n == len(tokens) - 4
    assert bench.stats("d").cached_n >= len(first.tokens) - 1
