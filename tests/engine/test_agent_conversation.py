"""An agent's conversation: a growing prompt, each turn's answer and a tool's result behind it.

What is computed is what is new.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from omlx.engine.speculation.strategy import DRAFT, OFF
from omlx.engine.step.plan import Window
from omlx.engine.types import Speculation
from tests import lanes
from tests.engine.harness import LIMITS, Bench, common, loop_of, noisy, prompt, request
from tests.lanes import few

SUFFIX = (91, 92, 93)
"""What the template puts before an answer."""
TURNS = 20 if lanes.slow else 8


def new_passes(bench: Bench) -> list[Window]:
    """Return the windows up to the first token of the newest request."""
    row = bench.windows[-1].row
    windows = [window for window in bench.windows if window.row == row]
    first = next(at for at, window in enumerate(windows) if window.sample)
    return windows[: first + 1]


@pytest.mark.parametrize(
    ("forgets", "drafting"), few(product((False, True), repeat=2), (False, True))
)
@pytest.mark.parametrize(
    ("family", "bound"),
    few([("llama", 1.05), ("gemma3_text", 1.05), ("qwen3_next", 1.15)], ("qwen3_next", 1.15)),
)
def test_every_turn_computes_what_is_new(
    family: str, bound: float, forgets: bool, drafting: bool
) -> None:
    """Where the template leaves the thoughts of earlier turns out, prompts part where an answer
    began.
    """
    limits = replace(LIMITS, context_length=8192, block_tokens=64)
    bench = Bench(loop_of(family, noisy(family) if drafting else None, limits=limits), check=False)
    messages, asked = prompt(400), list[tuple[int, ...]]()
    computed = needed = 0
    for turn in range(TURNS):
        tokens = (*messages, *SUFFIX)
        speculation = Speculation(DRAFT if drafting else OFF)
        more = {"max_tokens": 24, "stable": len(messages), "speculation": speculation}
        bench.run(one := request(f"{turn}", tokens, **more))
        if turn in (1, TURNS - 1):
            bench.proven(family, one)
        if turn and not drafting:
            assert 1 <= len(passes := new_passes(bench)) <= 2
            assert passes[-1].tokens[-len(SUFFIX) :] == SUFFIX  # with the first token
        stats = bench.stats(one.id)
        computed += stats.prompt_n - stats.cached_n
        needed += len(tokens) - max((common(tokens, before) for before in asked), default=0)
        answer = tuple(bench.tokens[one.id])
        asked.append((*tokens, *answer))
        said = answer[12:] if forgets else answer
        messages = (*tokens, *said, 94, *prompt(60 + 7 * (turn % 5), salt=turn + 2))
    assert computed <= bound * needed
    bench.loop.scheduler.prefix.index.check()
