"""The constants of speculation, each with its unit and its source.

"Worlds" are the simulated ones of `tests/engine/speculation`, "replays" recorded answers priced for
five machines: where a figure stands, it is the mean time or speed-up with another value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Assumptions of acceptance, cost model and policy."""

    evidence_decay: float = 0.97
    """Weight of a request's earlier acceptance counts after each draft: a change of text shows
    within some twenty drafts. The model's history decays ten times slower."""

    prior_weight: float = 6.0
    """Tokens that the expected acceptance rate of a bin counts for beside its own counts. With more
    than these a drafter counts as known. Replays with 4: 1.004, with 8: 1.013, but worlds in which
    a draft model is right 85 % of the time take up to 1.15."""

    match_bins: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 9, 12, 17, 33)
    """Tokens of a match at which bins begin. Short matches have a bin each: in records of one shape
    it is always the same token that changes."""

    match_rates: tuple[float, ...] = (0.6, 0.7, 0.75, 0.8, 0.85, 0.85, 0.9, 0.93, 0.97, 0.99)
    """Expected acceptance rate of each of these bins while nothing is measured. Source: recorded
    answers of the bundled models, short matches lower: records of one shape break off there."""

    draft_rate: float = 0.6
    """Expected acceptance rate of a draft model at every position while nothing is measured."""

    rate_bounds: tuple[float, float] = (0.02, 0.998)
    """Bounds of acceptance rates: no number of tokens makes the next one certain."""

    poor_rate: float = 0.2
    """Acceptance rate in earlier requests below which a draft model never pays: nothing is spent on
    it in advance."""

    fair_tokens: float = 2.0
    """Accepted tokens of a draft model that read only a prompt's end, from which on the rest may be
    read before its time was saved."""

    samples: int = 9
    """Samples kept per entry of the cost model. Their median ignores up to four outliers."""

    min_samples: int = 3
    """Samples from which on an entry is trusted."""

    sample_every: int = 8
    """A full entry stores one pass in eight. Faster changes are drift, common to all widths."""

    outlier: float = 10.0
    """Passes slower than this multiple of the estimate (sleep, swap) are discarded."""

    compiling: float = 2.0
    """The first pass of a width may compile kernels. Slower than this multiple of the estimate, it
    is discarded: a width recorded as expensive would never be tried again."""

    sure_speedup: float = 2.0
    """Forecast speed-up from which on plain steps are measured as rarely as ever. There they cost
    most, and so wrong an estimate is rare."""

    plain_run: int = 5
    """Plain steps in place of drafts at a time: three of five in a row can be timed."""

    plain_every: int = 64
    """Rounds with drafts between them. Doubled after each of the first times.
    In worlds in which they seem 1.7 times as slow as they are, answers take at most 1.1 of the
    time of plain decoding, 1.23 without."""

    plain_backoff: int = 4
    """Times that `plain_every` is doubled."""

    unknown_slope: float = 0.08
    """Plain steps per further token while no wider pass is measured: low, so that one is tried."""

    widest_window: int = 80
    """Tokens. Wider passes are prefill: they bound estimates for narrower ones and nothing else."""

    widths: tuple[int, ...] = (
        *(2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13),
        *(16, 20, 24, 32, 48, 64),
    )
    """Verification widths, in tokens: few enough to measure each, close enough to miss no cheap
    one, and on both sides of the steps of Apple's GPUs (mlx reads quantized weights once for 5
    rows, from 6, 10 or 13 rows on as a matrix). With six of them the worlds take 1.003 of the
    time."""

    first_length: int = 4
    """Tokens. Upper bound of drafts while no wide pass is measured."""

    min_speedup: float = 1.05
    """Forecast speed-up from which on a draft is made: a margin for errors of the estimates."""

    tie_margin: float = 0.01
    """Share by which a longer draft must be faster than a shorter one to be preferred."""

    min_reach: float = 0.05
    """Ignore draft positions whose cumulative acceptance probability is lower."""

    likely: float = 0.5
    """Chance of acceptance below which rows that share a pass through recurrent layers draft no
    token: after a rejection the row's accepted tokens are computed again, and widen the next
    pass of all rows."""

    catch_up_rounds: int = 16
    """Rounds that a draft model is expected to serve once it has read what it missed: as many as
    there were steps before, at least these."""

    exploration_share: float = 0.01
    """Share of a request's time that may be lost to drafting that turns out not to pay."""

    assumed_steps: int = 500
    """Plain steps whose share may be lost in advance: with the share above, an answer of 1,000
    tokens for which no draft pays takes some 1.5 % longer, a longer one less."""

    first_savings: float = 4.0
    """Plain steps that a model's first request may lose. In replays of SmolLM2 with 90 tokens an
    answer, on an M1: 1.06 of plain decoding's time with 5, 1.05 with 4. With 3, worlds in which a
    draft model must read a long prompt first find it late."""

    most_savings: float = 20.0
    """Plain steps that drafts which do not pay may take at once, where drafts saved as much before:
    enough to read a prompt of some 2,000 tokens with a draft model of a tenth of the size."""

    hopeless_speedup: float = 0.9
    """Forecast speed-up of a lookup below which the next matches of its length are skipped."""

    skipped_evaluations: int = 15
    """Steps for which a draft model that does not pay is neither evaluated nor probed; half as many
    matches of a lookup."""


CONFIG: Final = PolicyConfig()
