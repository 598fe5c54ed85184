"""Cost model: measured seconds of forward passes, by verification width and context length.

Latency over width is a sawtooth (kernel tiles) that flattens as the context grows. So a table keeps
medians of live samples and interpolates only between neighbouring widths; a context bucket borrows
what it lacks from the nearest one, scaled at a width that both have. One drift factor, the median
ratio of the latest passes to the table, follows heat and load: samples are stored divided by it,
estimates are multiplied by it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from itertools import chain
from statistics import median, median_low
from typing import Any, Final

from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.decide import Pass
from omlx.engine.speculation.drafter import Proposal
from omlx.exactness import Exactness

FIRST_BUCKET: Final = 256
"""Tokens of context in the first bucket."""

SHORT_LAG: Final = 2
"""Tokens. A round begins with one or two that the draft model has not read; more is a catch-up."""

LEAST_PASS: Final = 0.5
"""Plain steps. A pass of a batch that seems shorter is not learned."""

PLAIN: Final = 0
"""The "width" of plain decoding with the next step in flight: the interval between two reads."""


@lru_cache  # a step asks several times at one context
def bucket_of(context: int) -> int:
    """Return the bucket of a context of tokens: 0 up to 256, 1 up to 1,024, 2 up to 4,096 …"""
    return ((max(0, context - 1) // FIRST_BUCKET).bit_length() + 1) // 2


@dataclass(slots=True)
class LatencyTable:
    """Seconds of one model's passes. Samples and medians are by bucket, then by width (tokens).

    `expected` returns the cost of a width, in passes over one token, while no verification is
    measured; None where nothing is known of the chip.
    """

    drift: float = 1.0
    expected: Callable[[int], float] | None = None
    _passes: int = 0
    _outliers_in_a_row: int = 0
    _ratios: deque[float] = field(default_factory=lambda: deque(maxlen=CONFIG.samples))
    _samples: dict[int, dict[int, deque[float]]] = field(default_factory=dict)
    _medians: dict[int, dict[int, float]] = field(default_factory=dict)
    _curves: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)

    def learn(self, width: int, context: int, seconds: float) -> bool:
        """Record a measured pass. Return False for an outlier, and for a time of 0 or less.

        The third outlier in a row is believed: the estimate was wrong. True does not mean that the
        pass is stored: a slow first pass is discarded, a full entry stores one in `sample_every`.
        """
        if seconds <= 0.0:
            return False
        bucket, expected = bucket_of(context), self.seconds(width, context) or math.inf
        wrong = seconds > CONFIG.outlier * expected and self.reaches(width)
        if wrong:
            self._outliers_in_a_row += 1
            if self._outliers_in_a_row < CONFIG.min_samples:
                return False
        self._outliers_in_a_row = 0
        slow_at_first = seconds > CONFIG.compiling * expected and self._new(width)
        samples = self._samples.setdefault(bucket, {}).setdefault(
            width, deque(maxlen=CONFIG.samples)
        )
        if slow_at_first:  # the entry says that the next pass counts
            return True
        if not (samples or wrong) and self._known(width):
            # Two of the first three agree: a width that a busy machine once made seem expensive
            # would not be tried again.
            samples.append(expected / self.drift)
        if len(samples) == CONFIG.samples:
            self._ratios.append(seconds / self._medians[bucket][width])
            self.drift = median(self._ratios)
        self._passes = (self._passes + 1) % CONFIG.sample_every
        if len(samples) == CONFIG.samples and self._passes:
            return True
        samples.append(seconds / self.drift)
        self._medians.setdefault(bucket, {})[width] = median_low(samples)
        self._curves.clear()
        return True

    def doubt(self, width: int, context: int) -> None:
        """Keep two samples of an entry: of five, the next three decide."""
        bucket = bucket_of(context)
        samples = self._samples.get(bucket, {}).get(width)
        if samples and len(samples) > 2:
            kept = list(samples)[-2:]
            samples.clear()
            samples.extend(kept)
            self._medians[bucket][width] = median_low(samples)
            self._curves.clear()

    def learn_chunk(self, tokens: int, context: int, seconds: float) -> bool:
        """Record a prefill or catch-up of `tokens`, scaled to a power of two: a small table."""
        width = 1 << round(math.log2(tokens))
        return self.learn(width, context, seconds * width / tokens)

    def sample_count(self, width: int, context: int) -> int:
        return len(self._samples.get(bucket_of(context), {}).get(width, ()))

    @property
    def knows_plain(self) -> bool:
        """Whether plain steps were measured often enough to be trusted: the first may be slow."""
        for entries in self._samples.values():
            if max(len(entries.get(PLAIN, ())), len(entries.get(1, ()))) >= CONFIG.min_samples:
                return True
        return False

    @property
    def widest(self) -> int:
        """The widest verification ever measured, in tokens."""
        widths = chain.from_iterable(self._medians.values())
        return max((width for width in widths if width <= CONFIG.widest_window), default=0)

    def reaches(self, width: int) -> bool:
        """Return whether a pass of at least half this width was measured."""
        return any(width <= 2 * known for known in chain.from_iterable(self._medians.values()))

    def seconds(self, width: int, context: int) -> float | None:
        """Estimate a pass over `width` tokens at `context` tokens; None if nothing is measured."""
        widths, values = self._curves.get(bucket_of(context)) or self.curve(context)
        if not widths:
            return None
        i = bisect_right(widths, width)
        if i == 0 or widths[i - 1] == width:
            return values[max(0, i - 1)] * self.drift
        if self.expected is not None and widths[i - 1] <= 1 and width <= CONFIG.widest_window:
            bound = values[i] if i < len(widths) else math.inf  # a prefill
            return min(bound, values[i - 1] * self.expected(width)) * self.drift
        low, value, slope = widths[i - 1], values[i - 1], values[i - 1] * CONFIG.unknown_slope
        if i < len(widths):
            slope = (values[i] - value) / (widths[i] - low)
        elif low > 1:
            # Wider than anything measured: each further token costs the measured average.
            slope = max(0.0, value - values[0]) / (low - 1)
        return (value + slope * (width - low)) * self.drift

    def plain(self, context: int) -> float | None:
        """Estimate a plain step, or a pass of one token; None if neither is measured."""
        widths, values = self._curves.get(bucket_of(context)) or self.curve(context)
        return values[0] * self.drift if widths and widths[0] <= 1 else None

    def _known(self, width: int) -> bool:
        """Return whether a width was measured at any context."""
        return any(width in medians for medians in self._medians.values())

    def _new(self, width: int) -> bool:
        """Return whether a width that will occur again was never read yet."""
        read = any(width in entries for entries in self._samples.values())
        return not read and (width <= CONFIG.widest_window or self.reaches(width))

    def curve(self, context: int) -> tuple[list[int], list[float]]:
        """Return all widths measured anywhere, ascending, and their seconds at this context before
        the drift."""
        bucket = bucket_of(context)
        if bucket not in self._curves:
            points: dict[int, float] = {}
            for other in sorted(self._medians, key=lambda near: (abs(near - bucket), near)):
                self._borrow(points, self._medians[other])
            if 1 not in points and PLAIN in points:
                points[1] = points[PLAIN]
            # A prefill more than twice as slow as its tokens one by one was measured across a
            # sleep: leave it out.
            limit = 2.0 * points.get(1, math.inf)
            widths = sorted(
                w for w in points if w <= CONFIG.widest_window or points[w] <= limit * w
            )
            self._curves[bucket] = widths, [points[width] for width in widths]
        return self._curves[bucket]

    def _borrow(self, points: dict[int, float], entries: dict[int, float]) -> None:
        """Add another bucket's entries for missing widths, scaled at the nearest shared width."""
        shared = [width for width in entries if width in points]
        for width, value in entries.items():
            if width not in points:
                near = min(shared, key=lambda other: abs(other - width), default=None)
                scaled = value if near is None else value * points[near] / entries[near]
                points[width] = scaled

    def to_json(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = []
        for bucket, entries in sorted(self._samples.items()):
            for width, samples in sorted(entries.items()):
                if samples:
                    seconds = [value * self.drift for value in samples]
                    data.append({"bucket": bucket, "width": width, "seconds": seconds})
        return data

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> LatencyTable:
        table = cls()
        for entry in data:
            bucket, width = int(entry["bucket"]), int(entry["width"])
            samples = deque((float(value) for value in entry["seconds"]), maxlen=CONFIG.samples)
            table._samples.setdefault(bucket, {})[width] = samples
            table._medians.setdefault(bucket, {})[width] = median_low(samples)
        return table


@dataclass(slots=True)
class PlainRuns:
    """Plain steps in place of drafts, to measure them. `runs` so far, the steps `left` of the
    present one, and `rounds` with drafts since.
    """

    rounds: int = 0
    left: int = 0
    runs: int = 0


@dataclass(slots=True)
class CostModel:
    """Latency tables of the target and of each draft model, shared by all rows of a loaded model.

    `batches` are the target's passes over several rows, by number of rows; widths in them are the
    tokens of all rows. Prompt lookups count as free.
    """

    target: LatencyTable = field(default_factory=LatencyTable)
    drafts: dict[str, LatencyTable] = field(default_factory=dict)
    batches: dict[int, LatencyTable] = field(default_factory=dict)
    draft_share: float = 0.2
    """A draft pass in target passes while none is measured: the ratio of the weights' bytes."""
    exactness: Exactness | None = None
    """At which widths passes have the bits of single steps; kept with the costs, under one key."""
    _plain_runs: dict[tuple[int, int], PlainRuns] = field(default_factory=dict)

    def verify(self, width: int, context: int) -> float:
        """Estimate the seconds of a target pass; 0 while nothing is measured."""
        return self.target.seconds(width, context) or 0.0

    def batch_pass(self, rows: int, width: int, context: int) -> float:
        """Estimate a target pass over a batch whose rows read `width` tokens each, or a plain step
        (`PLAIN`); 0 while nothing is measured.

        What is not measured takes the time of a single row's pass over as many tokens, scaled by
        the nearest width that is.
        """
        if rows == 1:
            return self.verify(width, context)
        tokens, table = rows * max(width, 1), self.batches.get(rows)
        alone = self.verify(tokens, context)
        if table is None:
            return alone
        if not alone:
            return table.seconds(rows * width, context) or 0.0  # a plain step is an entry

        def distance(known: int) -> float:
            read = max(known, rows)  # a plain step reads one token of each row
            return abs(read - tokens) + 0.5 * (known != rows * width)

        known = min(table.curve(context)[0], key=distance, default=PLAIN)
        basis = self.verify(max(known, rows), context)
        return alone * (table.seconds(known, context) or basis) / basis

    def widest(self, rows: int) -> int:
        """Return the widest window of a row ever measured, alone or in a batch of `rows`."""
        batch = self.batches.get(rows)
        return max(self.target.widest, batch.widest // rows if batch else 0)

    def plain_step(self, rows: int, context: int) -> float:
        """Estimate a plain step of `rows` rows; 0 until a pass over as many was measured."""
        if rows == 1:
            return self.target.plain(context) or 0.0
        return self.batch_pass(rows, PLAIN, context) if rows in self.batches else 0.0

    def plain_due(self, rows: int, context: int, speedup: float) -> bool:
        """Return whether a pass of drafts over `rows` is to be a plain step, to measure one.

        Rows of which one always drafts would measure none: an estimate made elsewhere, or on a
        busy machine, would decide for ever that drafts pay.
        """
        plain = self._plain_runs.get((rows, bucket_of(context))) or PlainRuns()
        sure = speedup >= CONFIG.sure_speedup
        doublings = CONFIG.plain_backoff if sure else min(plain.runs, CONFIG.plain_backoff)
        if plain.left or plain.rounds >= CONFIG.plain_every << doublings:
            return True
        known = self.batch_samples(rows, PLAIN, context) >= CONFIG.min_samples
        return not (known or sure or plain.runs)

    def count_pass(self, rows: int, context: int, *, measures: bool) -> None:
        """Count a pass with drafts, or a plain step in place of one, for `plain_due`.

        A run has `CONFIG.plain_run` such steps, whatever comes between them, timed or not.
        """
        plain = self._plain_runs.setdefault((rows, bucket_of(context)), PlainRuns())
        if not measures:
            plain.rounds += 1
            return
        if not plain.left:
            plain.left = CONFIG.plain_run
            table = self.target if rows == 1 else self.batches.get(rows)
            if table is not None:
                table.doubt(PLAIN, context)
        plain.left -= 1
        if not plain.left:
            plain.rounds, plain.runs = 0, plain.runs + 1

    def next_pass(self, rows: int, context: int, sharing: Counter[str] | None = None) -> Pass:
        """Return the prices of the next pass. The first passes over `rows` are plain steps."""
        seconds = cache(partial(self.batch_pass, rows, context=context))
        return Pass(rows, context, seconds, self.plain_step(rows, context), sharing or Counter())

    def batch_samples(self, rows: int, width: int, context: int) -> int:
        """Return the number of samples behind `batch_pass` at this width."""
        table = self.target if rows == 1 else self.batches.get(rows)
        return 0 if table is None else table.sample_count(rows * width, context)

    def learn_batch(self, rows: int, width: int, context: int, seconds: float) -> None:
        """Record a pass whose rows read `width` tokens each, padding included, or a plain step.

        Of a pass that seems shorter than `LEAST_PASS`, too much was subtracted for drafting.
        """
        if width != PLAIN and seconds < LEAST_PASS * self.plain_step(rows, context):
            return
        self.batches.setdefault(rows, LatencyTable()).learn(rows * width, context, seconds)

    def draft(self, name: str, width: int, context: int) -> float:
        """Estimate the seconds of a draft model's pass over `width` tokens, of one row or of many.

        Widths beyond those measured, and every width while nothing is measured, cost a share of the
        target's pass.
        """
        table, share = self.drafts.get(name), self.draft_share
        if table is not None and (single := table.seconds(1, context)):
            if width == 1:
                return single
            if table.reaches(width):
                return table.seconds(width, context) or single
            share = single / (self.verify(1, context) or math.inf)
        return share * self.verify(width, context)

    def draft_pass(self, proposal: Proposal, context: int, rows: int = 1) -> float:
        """Estimate the seconds of a drafter's pass: a row's share of a pass over `rows`."""
        return 0.0 if proposal.free else self.draft(proposal.drafter, rows, context) / rows

    def drafting(self, proposal: Proposal, k: int, context: int, rows: int = 1) -> float:
        """Estimate the seconds of drafting k tokens, catch-up included."""
        catch_up = self.catch_up(proposal.drafter, proposal.lag, context)
        return catch_up + proposal.passes(k) * self.draft_pass(proposal, context, rows)

    def catch_up(self, name: str, lag: int, context: int) -> float:
        """Estimate the seconds of reading `lag` tokens, beyond a usual pass of a draft model.

        0 where the usual pass was measured as the slower one, as on a busy machine.
        """
        if lag <= SHORT_LAG:
            return 0.0
        return max(0.0, self.draft(name, lag, context) - self.draft(name, 1, context))

    def learn_draft(
        self, name: str, k: int, lag: int, context: int, seconds: float, rows: int = 1
    ) -> None:
        """Record a draft model's round that was timed on its own: it read `lag` tokens and drafted
        in `k` passes. `seconds` are one row's share where `rows` shared the passes.
        """
        table = self.drafts.setdefault(name, LatencyTable())
        if lag <= SHORT_LAG or rows > 1:
            table.learn(rows, context, seconds * rows / k)
            return
        first = seconds - (k - 1) * self.draft(name, 1, context)
        if first > 0.0 and table.sample_count(1, context):
            table.learn_chunk(lag, context, first)

    def to_json(self) -> dict[str, Any]:
        drafts = {name: table.to_json() for name, table in self.drafts.items()}
        batches = {str(rows): table.to_json() for rows, table in self.batches.items()}
        exactness = None if self.exactness is None else self.exactness.to_json()
        # "company" is the stored name of batches.
        costs = {"target": self.target.to_json(), "drafts": drafts, "company": batches}
        return costs | {"exactness": exactness}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CostModel:
        read = LatencyTable.from_json
        drafts = {name: read(table) for name, table in data["drafts"].items()}
        stored = data.get("company", {})  # older files have none
        batches = {int(rows): read(table) for rows, table in stored.items()}
        kept = data.get("exactness")
        exactness = None if kept is None else Exactness.from_json(kept)
        return cls(read(data["target"]), drafts, batches, exactness=exactness)
