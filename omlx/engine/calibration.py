"""Measures what passes cost while nobody asks for anything, so that a first request need not find out.

The policy compares steps of the engine, with all that surrounds a pass, so steps are what is measured: a request that
nobody sent goes the way of all requests, in a loop and caches of its own, and the clock that learns from every request
learns from it. It drafts what fills the next pass of the table, right or wrong; for another one a draft model drafts.
What is known already is not measured again. Caches stay below 256 tokens, and nothing outlives an interruption.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from omlx.draft_length import MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.isolation import isolate
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.cost_model import FIRST_BUCKET, MIN_SAMPLES, PLAIN, WIDTHS, CostModel
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import DRAFT, NGRAM, Step
from omlx.engine.types import CalibrationState, Failed, Request, Sampling, Speculation

if TYPE_CHECKING:
    from omlx.engine.loop import EngineLoop

SLICE_SECONDS: Final = 0.05
"""Whoever comes now waits for what runs: what is known to take longer is left to requests."""

ENOUGH: Final = 5
"""Samples of a pass. The first may compile kernels, so that one alone says nothing; the median counts."""

MOST_TURNS: Final = 1000
"""All there is takes a tenth of these. A model that has used them up is left alone, whatever is still unknown."""

DRAFTED: Final = 4
STRIDE: Final = 7919
"""Ids lie far apart: equal tokens would all go to the same experts, and cost less than a text does."""

log = logging.getLogger("omlx.engine")


class Calibration:
    """What is left to measure of the model that `loop` serves as `name`. `state` is never OFF."""

    def __init__(self, name: str, loop: EngineLoop) -> None:
        self.state = CalibrationState.PENDING
        self._name = name
        self._loop = loop
        self._left = MOST_TURNS

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Go on until all is known, or something else is to be done: asked between two turns of 50 ms or less.

        Where memory is short nothing is done. No array is held afterwards. Modifies the costs of the model alone, and
        raises nothing.
        """
        if self.state is not CalibrationState.PENDING or not _fits(self._loop):
            return
        with isolate() as outcome:
            if self._go_on(interrupted):
                self.state = CalibrationState.DONE
        if (error := outcome.error) is not None:
            fields = {"model": self._name, "detail": f"{type(error).__name__}: {error}"}
            log.warning("calibration failed", extra={"fields": fields})
            self.state = CalibrationState.FAILED

    def _go_on(self, interrupted: Callable[[], bool]) -> bool:
        """Whether it came to its end."""
        turns = _turns(self._loop)
        while not interrupted():
            self._left -= 1
            if not next(turns, False) or not self._left:
                return True
        return False


def _fits(loop: EngineLoop) -> bool:
    """Whether its short caches pass no limit, so that nobody has to go for them; they are gone before a request is."""
    room = loop.scheduler.memory.headroom()
    return room is None or room >= loop.scheduler.prefix.layout.cache_bytes(FIRST_BUCKET)


def _turns(loop: EngineLoop) -> Iterator[bool]:
    """A step at every turn, until all is known. Raises what a step raised."""
    costs, speculator = loop.cost_model, loop.scheduler.speculator
    if speculator.off is not None:
        return
    filler = _Filler(costs, loop.limits.vocab_size)
    yield from _steps(
        loop.sibling(filler),
        Speculation(NGRAM, DraftLength.exactly(MAX_DRAFT_LENGTH - 1)),
        FIRST_BUCKET - 1,
        done=lambda: filler.next_width() is None,
        overlapped=lambda: filler.next_width() == PLAIN,
    )
    for drafter in speculator.drafters:
        if drafter.kind == "draft":
            asked = Speculation(DRAFT, DraftLength.exactly(DRAFTED))
            yield from _steps(
                loop.sibling(),
                asked,
                ENOUGH * DRAFTED,
                done=partial(_draft_known, costs, drafter.name),
            )


def _steps(
    loop: EngineLoop,
    asked: Speculation,
    tokens: int,
    done: Callable[[], bool],
    overlapped: Callable[[], bool] = lambda: False,
) -> Iterator[bool]:
    """The steps of one request. Nothing runs between two of them, unless plain ones are to be `overlapped`."""
    loop.submit(Request("calibration", (0,), Sampling(temperature=0.0), tokens, speculation=asked))
    while loop.has_work and not done():
        events = loop.step()
        if not overlapped():
            events += loop.drain()
        for event in events:
            if isinstance(event, Failed):
                raise event.error
        yield True


def _draft_known(costs: CostModel, name: str) -> bool:
    """Whether enough is known of what a draft model takes, or that a round with it takes too long."""
    known = costs.drafts[name].sample_count(1, 1) if name in costs.drafts else 0
    seconds = costs.verify(DRAFTED + 1, 1) + DRAFTED * costs.draft(name, 1, 1)
    return known >= MIN_SAMPLES or (seconds > SLICE_SECONDS and known != 1)


class _Filler(NgramDrafter):
    """Drafts anything, as much as fills the narrowest pass that is not known."""

    def __init__(self, costs: CostModel, vocab_size: int) -> None:
        super().__init__()
        self._costs = costs
        self._vocab_size = vocab_size

    def next_width(self) -> int | None:
        """The next pass to measure; none where it would take too long, for those behind it are wider. Of plain steps
        whoever comes waits for two."""
        known, verify = self._costs.target.sample_count, self._costs.verify
        plain = (PLAIN,) if 2 * verify(PLAIN, 1) <= SLICE_SECONDS else ()
        width = next((w for w in (1, *plain, *sorted(WIDTHS)) if known(w, 1) < ENOUGH), None)
        return (
            None
            if width is None or (verify(width, 1) > SLICE_SECONDS and known(width, 1) != 1)
            else width
        )

    def propose(self, sequence: Sequence, limit: int, step: Step) -> Proposal | None:
        k = min(limit, (self.next_width() or 1) - sequence.pending)
        return Proposal(self.name, k, match=1, step=step) if k > 0 else None

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        first = len(sequence.tokens)
        return Draft(
            self.name,
            limit,
            tuple(STRIDE * i % self._vocab_size for i in range(first, first + limit)),
        )
