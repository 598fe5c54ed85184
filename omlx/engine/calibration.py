"""Calibration: measures the latency of passes while the engine is idle.

The speculation policy compares steps of the engine, so steps are measured: requests of our own run
in a sibling loop with caches of its own, and update the cost model as every request does. Their
drafts fill the width measured least often, right or wrong: widths take turns, so other load on the
machine slows all of them. Another request drafts with the draft model. Caches stay below 256
tokens, and nothing outlives an interruption. Last, wide passes are compared with single steps, bit
by bit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Final

from omlx.draft_length import MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.device_errors import isolate
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import FIRST_BUCKET, PLAIN, CostModel
from omlx.engine.speculation.drafter import Draft, Proposal
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.strategy import NGRAM, Clause, only
from omlx.engine.step.row import Row
from omlx.engine.types import CalibrationState, Failed, Request, Sampling, Speculation
from omlx.exactness import ROWS

if TYPE_CHECKING:
    from omlx.engine.device.facts import Differences
    from omlx.engine.loop import EngineLoop


SHORT_STEP_SECONDS: Final = 0.05
"""Passes up to this long are measured, however short a plain step is."""

LONGEST_IN_PLAIN_STEPS: Final = 3.0
"""Plain steps. Passes known to take longer are not measured unless they are short: an arriving
request would wait for them, and drafts that pay are rarely verified by slower ones."""

MAX_STEP_SECONDS: Final = 1.0
"""Passes known to take longer are never measured."""

SAMPLES: Final = 5
"""Measurements of each width. The first may include compilation of kernels; the median counts.
Passes that are not short are measured `CONFIG.min_samples` times."""

COLD_SECONDS: Final = 1.0
"""Without a pass. A GPU takes several times as long for the next one: a large model's weights are
made resident again, and the clock rises."""

WARM_UP_PASSES: Final = 2
"""Passes after such a pause that are not learned from."""

MAX_STEPS: Final = 1000
"""Limit of a calibration that does not converge; a complete one takes a tenth of it."""

EXACTNESS_TRIES: Final = 8
"""Interruptions after which exactness is left to who asks for it: contexts are read again."""

DRAFT_LENGTH: Final = 4
"""Tokens per round with the draft model."""

BATCHES: Final = (2, 4)
"""Rows of the batches measured too."""

BATCH_WIDTHS: Final = (4, 8, 16)
"""Tokens that each of their rows reads; passes over more rows or other widths are estimated."""

STRIDE: Final = 7919
"""Between the ids of a draft. Equal ids would use the same experts, and take less time than text.
"""

log = logging.getLogger("omlx.engine")


class Calibration:
    """The calibration of one loaded model; `name` is for the log. `state` is never OFF."""

    def __init__(
        self, name: str, loop: EngineLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.state = CalibrationState.PENDING
        self._name = name
        self.loop = loop
        self._clock = clock
        self._steps_left = MAX_STEPS
        self._last_step = -inf
        self._exactness_left = EXACTNESS_TRIES
        self._differences: Differences = {}

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Measure until all is known or `interrupted`, which is called between two steps.

        Does nothing where memory is short. Updates only the model's cost model, holds no array
        afterwards, and raises nothing.
        """
        if not self.pending or not _fits_memory(self.loop):
            return
        with isolate() as outcome:
            if self.state is CalibrationState.PENDING and self._measure(interrupted):
                self.state = CalibrationState.DONE
            if self.state is CalibrationState.DONE and self._exactness_left:
                self._exactness_left -= 1
                if _measure_exactness(self.loop, self._differences, interrupted):
                    self._exactness_left = 0
        if (error := outcome.error) is not None:
            fields = {"model": self._name, "detail": f"{type(error).__name__}: {error}"}
            log.warning("calibration failed", extra={"fields": fields})
            self.state = CalibrationState.FAILED

    @property
    def pending(self) -> bool:
        """Whether `run` has something left to measure."""
        if self.state is CalibrationState.DONE:
            return self._exactness_left > 0
        return self.state is CalibrationState.PENDING

    def _measure(self, interrupted: Callable[[], bool]) -> bool:
        """Return whether the calibration is complete."""
        cold = self._clock() - self._last_step > COLD_SECONDS
        steps = _all_steps(self.loop, _warm_up(self.loop) if cold else iter(()))
        while not interrupted():
            self._steps_left -= 1
            if not next(steps, False) or not self._steps_left:
                return True
            self._last_step = self._clock()
        return False


def _fits_memory(loop: EngineLoop, rows: int = 1) -> bool:
    """Whether the caches of a calibration stay below the soft limit; a batch's are copied once."""
    headroom = loop.scheduler.memory.headroom()
    needed = loop.scheduler.prefix.layout.cache_bytes(FIRST_BUCKET)
    if rows > 1:
        needed *= 2 * rows
    return headroom is None or headroom >= needed


def _warm_up(loop: EngineLoop) -> Iterator[bool]:
    """Run some steps that no cost model learns from."""
    sibling = loop.sibling(NgramDrafter())
    sibling.use_drafters([], cost_model=CostModel())
    yield from _steps(sibling, Speculation(), WARM_UP_PASSES, done=lambda: False)


def _measure_exactness(
    loop: EngineLoop, known: Differences, interrupted: Callable[[], bool]
) -> bool:
    """Compare wide passes with single steps, once, from what is `known` on.

    Return whether that is done, or cannot be.
    """
    from omlx.engine.device.facts import (  # noqa: PLC0415 — see `import_mlx_lm`
        CONTEXTS,
        measure_exactness,
    )

    runner, cost_model, limits = loop.runner, loop.cost_model, loop.limits
    if cost_model.exactness is not None or runner.prefill_first is not None:  # in stages
        return True
    single = cost_model.verify(1, 1), cost_model.batch_samples(1, 1, 1)
    too_long = _too_long(*single, cost_model)
    if too_long or not _fits_memory(loop, ROWS[-1] * CONTEXTS[-1] // FIRST_BUCKET):
        return True
    longest = limits.context_length
    steps = measure_exactness(runner.model, runner.make_cache, limits.vocab_size, longest, known)
    while not interrupted():
        try:
            next(steps)
        except StopIteration as finished:
            cost_model.exactness = finished.value
            return True
    return False


def _all_steps(loop: EngineLoop, warm_up: Iterator[bool]) -> Iterator[bool]:
    """Run one step per item, until all is measured. Raises what a step raised.

    Runs the steps of `warm_up` before the first that is measured.
    """
    cost_model, speculator = loop.cost_model, loop.scheduler.speculator
    if speculator.off_reason is not None:
        return
    batches = [rows for rows in BATCHES if _can_batch(loop, rows)]
    for rows in (1, *batches):
        filler = _Filler(cost_model, loop.limits.vocab_size, rows)
        if filler.done():
            continue
        yield from warm_up
        yield from _steps(
            loop.sibling(filler, rows),
            Speculation(NGRAM, DraftLength.exactly(MAX_DRAFT_LENGTH - 1)),
            max_tokens=FIRST_BUCKET - 1,
            done=filler.done,
            overlapped=filler.overlaps,
        )
    for drafter in speculator.drafters:
        # Draft models alone share passes between rows.
        sizes = (1, *batches) if drafter.kind == "draft" else (1,)
        for rows in () if isinstance(drafter, NgramDrafter) else sizes:
            done = partial(_draft_measured, cost_model, drafter.name, rows)
            if done():
                continue
            yield from warm_up
            yield from _steps(
                loop.sibling(rows=rows),
                Speculation(only(drafter.kind), DraftLength.exactly(DRAFT_LENGTH)),
                max_tokens=SAMPLES * DRAFT_LENGTH,
                done=done,
            )


def _can_batch(loop: EngineLoop, rows: int) -> bool:
    """Whether `rows` rows may share a batch, draft in it, and fit into memory."""
    batch = loop.scheduler.batch
    able = batch.off_reason is None and batch.no_uneven is None
    return able and rows <= loop.limits.max_rows and _fits_memory(loop, rows)


def _steps(
    loop: EngineLoop,
    speculation: Speculation,
    max_tokens: int,
    done: Callable[[], bool],
    overlapped: Callable[[], bool] = lambda: False,
) -> Iterator[bool]:
    """Run the steps of one request for each row, drained one by one unless `overlapped`."""
    greedy = Sampling(temperature=0.0)
    for row in range(loop.limits.max_rows):
        name = f"calibration {row}"
        loop.submit(Request(name, (0,), greedy, max_tokens, speculation=speculation))
    while loop.has_work and not done():
        events = loop.step()
        if not overlapped():
            events += loop.flush()
        for event in events:
            if isinstance(event, Failed):
                raise event.error
        yield True


def _draft_measured(cost_model: CostModel, name: str, rows: int) -> bool:
    """Whether a draft model's passes over `rows` are measured, or too long for it."""
    passes = cost_model.drafts.get(name)
    samples = passes.sample_count(rows, 1) if passes is not None else 0
    drafting = DRAFT_LENGTH * cost_model.draft(name, rows, 1)
    seconds = cost_model.batch_pass(rows, DRAFT_LENGTH + 1, 1) + drafting
    return samples >= CONFIG.min_samples or _too_long(seconds, samples, cost_model)


def longest_pass(cost_model: CostModel) -> float:
    plain = cost_model.target.plain(1) or 0.0
    return max(SHORT_STEP_SECONDS, min(MAX_STEP_SECONDS, LONGEST_IN_PLAIN_STEPS * plain))


def _too_long(seconds: float, samples: int, cost_model: CostModel) -> bool:
    """Whether a pass takes too long to be measured; a single sample may include a compilation."""
    return seconds > longest_pass(cost_model) and samples != 1


class _Filler(NgramDrafter):
    """Drafts arbitrary tokens, as many as fill the width measured least often.

    For several rows, widths are those of each.
    """

    def __init__(self, cost_model: CostModel, vocab_size: int, rows: int = 1) -> None:
        super().__init__()
        self._cost_model = cost_model
        self._vocab_size = vocab_size
        self._rows_of_batch = rows

    def next_width(self) -> int | None:
        """The width to measure next; None if all that do not take too long are measured."""
        # Plain steps overlap: a request that arrives waits for two of them.
        plain = (PLAIN,) if 2 * self._seconds(PLAIN) <= longest_pass(self._cost_model) else ()
        widths: tuple[int, ...] = (1, *plain, *CONFIG.widths)
        if self._rows_of_batch > 1:
            widths = (*plain, *BATCH_WIDTHS)
        missing = [w for w in takewhile(self._short, widths) if self._samples(w) < self._wanted(w)]
        return min(missing, key=self._samples, default=None)

    def done(self) -> bool:
        return self.next_width() is None

    def overlaps(self) -> bool:
        return self.next_width() == PLAIN

    def _short(self, width: int) -> bool:
        return not _too_long(self._seconds(width), self._samples(width), self._cost_model)

    def _wanted(self, width: int) -> int:
        """Number of samples to take of a width."""
        return SAMPLES if self._seconds(width) <= SHORT_STEP_SECONDS else CONFIG.min_samples

    def _samples(self, width: int) -> int:
        return self._cost_model.batch_samples(self._rows_of_batch, width, 1)

    def _seconds(self, width: int) -> float:
        return self._cost_model.batch_pass(self._rows_of_batch, width, 1)

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        length = min(limit, (self.next_width() or 1) - row.pending)
        if length < 1:
            return None
        return Proposal(self.name, length, match=1, clause=clause)

    def draft(self, row: Row, limit: int) -> Draft | None:
        first = len(row.tokens)
        tokens = (STRIDE * i % self._vocab_size for i in range(first, first + limit))
        return Draft(self.name, limit, tuple(tokens))
