"""What a round costs here: seconds by the width of its pass, engine and sampling included.

Rounds are taken from the engine itself, with a drafter that knows the answer: every draft is right, so that the time
of a request is that of its rounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import replace
from statistics import median
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.measure import settle, tokens_per_second
from omlx.bench.sides import drive, request
from omlx.bench.speculation.oracle import RoundCosts
from omlx.bench.subject import Subject
from omlx.draft_length import DraftLength
from omlx.engine.loop import EngineLoop
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import NGRAM, Step
from omlx.engine.types import Request, Speculation

WIDTHS: Final = (2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 17, 20, 24, 32, 48, 64)
ROUNDS: Final = 4
STEPS: Final = 32
REPEATS: Final = 5
PASSES: Final = 30
PREFIX_BYTES: Final = 1 << 30


class Script(NgramDrafter):
    """Proposes what it was told that the model will say; what else a lookup does, it does."""

    def __init__(self, known: Seq[int]) -> None:
        super().__init__()
        self._known = tuple(known)

    def propose(self, sequence: Sequence, limit: int, step: Step) -> Proposal | None:
        super().propose(sequence, limit, step)
        return Proposal(self.name, limit, match=1, step=step) if limit > 0 else None

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        size = len(sequence.tokens)
        tokens = self._known[size : size + limit]
        return Draft(self.name, len(tokens), tokens) if tokens else None


def round_costs(
    subject: Subject, context: int, widths: Seq[int] = WIDTHS, repeats: int = REPEATS
) -> RoundCosts:
    """Measure plain steps and rounds of these widths around `context` tokens, in turns: a machine's speed drifts, and
    what a round takes is told in plain steps of its own time. The prompt is read once, by an engine of its own."""
    loop = subject.new_loop(PREFIX_BYTES)
    longest = max(widths) * (ROUNDS + 1)
    prompt = tuple(
        i % subject.vocab_size for i in range(7, 7 + 3 * max(1, context - longest // 2), 3)
    )
    off = loop.scheduler.speculator.off
    loop.use_drafters([], off)
    answer = drive(loop, [request(prompt, longest)]).run.tokens[0]
    script = Script(prompt + answer)
    plain: list[float] = []
    rounds: dict[int, list[float]] = {width: [] for width in widths}
    for _ in range(repeats):
        loop.use_drafters([], off)
        settle()
        plain.append(1.0 / tokens_per_second(drive(loop, [request(prompt, STEPS)]).run))
        loop.use_drafters([script], off)
        for width, found in rounds.items():
            asks = Speculation(NGRAM, DraftLength.exactly(width - 1))
            asked = replace(request(prompt, width * (ROUNDS + 1)), speculation=asks)
            found.append(_round_seconds(loop, asked, width) / plain[-1])
    step = median(plain)
    return RoundCosts(step, tuple(widths), tuple(step * median(found) for found in rounds.values()))


def draft_seconds(model: Any, context: int, passes: int = PASSES) -> float:
    """One pass of a draft model over one token, its answer read back."""
    cache = make_prompt_cache(model)
    token = mx.zeros((1, 1), mx.uint32)
    mx.eval(model(mx.zeros((1, context), mx.uint32), cache=cache))
    times = []
    for _ in range(passes):
        start = time.perf_counter()
        mx.eval(mx.argmax(model(token, cache=cache)[:, -1], axis=-1))
        times.append(time.perf_counter() - start)
    return median(times)


def _round_seconds(loop: EngineLoop, asked: Request, width: int) -> float:
    settle()
    run = drive(loop, [asked]).run
    return run.seconds * width / run.counted
