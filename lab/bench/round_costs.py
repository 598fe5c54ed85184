"""The measured cost of a round by the width of its pass, with the engine's work and sampling.

Rounds are run by the engine itself, with a drafter that knows the answer: every draft is accepted,
so the time of a request is that of its rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from lab.bench.console import Json
from lab.bench.drive import drive, request, settle
from lab.bench.oracle import RoundCosts, break_even
from lab.bench.subject import Subject
from omlx.draft_length import DraftLength
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.drafter import Draft, Proposal
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.strategy import NGRAM, Clause
from omlx.engine.step.row import Row
from omlx.engine.types import Request, Speculation

WIDTHS: Final = (2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 17, 20, 24, 32, 48, 64)
ROUNDS: Final = 4
STEPS: Final = 32
REPEATS: Final = 5
PASSES: Final = 30
PREFIX_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class PassCosts:
    """The rounds of one model by width, and a pass of its draft model, in seconds."""

    rounds: RoundCosts
    draft: float | None

    def rows(self) -> Iterator[tuple[int, float, float | None, float | None]]:
        """Yield the draft length, a round in plain steps, and two break-even acceptance rates.

        The first one is that of a prompt lookup, the second that of the draft model.
        """
        plain = self.rounds.plain
        for width in self.rounds.widths:
            k, seconds = width - 1, self.rounds.verify(width)
            drafted = None
            if self.draft is not None:
                drafted = break_even(k, seconds + k * self.draft, plain)
            yield k, seconds / plain, break_even(k, seconds, plain), drafted

    def to_json(self) -> Json:
        names = ("window", "plain_steps", "break_even_lookup", "break_even_draft")
        rows = [dict(zip(names, row, strict=True)) for row in self.rows()]
        return {**asdict(self.rounds), "draft_pass": self.draft, "windows": rows}


class ScriptedDrafter(NgramDrafter):
    """Proposes the tokens of a known answer, with the host's work of a prompt lookup."""

    def __init__(self, known: Sequence[int]) -> None:
        super().__init__()
        self._known = tuple(known)

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        super().propose(row, limit, clause)
        return Proposal(self.name, limit, match=1, clause=clause) if limit > 0 else None

    def draft(self, row: Row, limit: int) -> Draft | None:
        size = len(row.tokens)
        tokens = self._known[size : size + limit]
        return Draft(self.name, len(tokens), tokens) if tokens else None


def round_costs(
    subject: Subject, context: int, widths: Sequence[int] = WIDTHS, repeats: int = REPEATS
) -> RoundCosts:
    """Measure plain steps and rounds of these widths around `context` tokens.

    They take turns, and a round counts in plain steps of its own time, because a machine's speed
    drifts. The prompt is computed once, by an engine of its own with a prefix cache.
    """
    loop = subject.new_loop(PREFIX_BYTES)
    longest = max(widths) * (ROUNDS + 1)
    length = max(1, context - longest // 2)
    prompt = tuple(i % subject.vocab_size for i in range(7, 7 + 3 * length, 3))
    off = loop.scheduler.speculator.off_reason
    loop.use_drafters([], off)
    answer = drive(loop, [request(prompt, longest)]).sample.tokens[0]
    scripted = ScriptedDrafter(prompt + answer)
    plain: list[float] = []
    rounds: dict[int, list[float]] = {width: [] for width in widths}
    for _ in range(repeats):
        loop.use_drafters([], off)
        settle()
        plain.append(1.0 / drive(loop, [request(prompt, STEPS)]).sample.rate)
        loop.use_drafters([scripted], off)
        for width, ratios in rounds.items():
            speculation = Speculation(NGRAM, DraftLength.exactly(width - 1))
            asked = replace(request(prompt, width * (ROUNDS + 1)), speculation=speculation)
            ratios.append(_round_seconds(loop, asked, width) / plain[-1])
    step = median(plain)
    seconds = tuple(step * median(ratios) for ratios in rounds.values())
    return RoundCosts(step, tuple(widths), seconds)


def draft_pass_seconds(model: Any, context: int, passes: int = PASSES) -> float:
    """Return the seconds of a draft model's pass over one token, with its result read back."""
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
    sample = drive(loop, [asked]).sample
    return sample.seconds * width / sample.counted
