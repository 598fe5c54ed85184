"""Statistics of requests, drafters and prefix caches, for API, metrics, log and dashboard.

One record of each, filled in by the engine and read only by the layers above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from omlx.errors import Reason


@dataclass(slots=True)
class DrafterStats:
    """Statistics of a drafter, in a request or summed over several.

    A round is one draft-and-verify iteration. Times are of rounds not shared with other requests:
    most rounds, not all.
    """

    proposed: int = 0
    accepted: int = 0
    rounds: int = 0
    # [i]: rounds in which the first i + 1 draft tokens were accepted.
    accepted_at: list[int] = field(default_factory=list)
    spans: dict[str, int] = field(default_factory=dict)  # rounds by `verification_outcome`
    repairs: dict[str, int] = field(default_factory=dict)  # rounds by kind of cache rollback
    # Measured if drafting is timed separately, else estimated by the cost model; prompt lookup: 0.
    draft_ms: float = 0.0
    # The remaining time of the round: the target's pass and the host's work.
    verify_ms: float = 0.0

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.proposed)

    def add_round(self, proposed: int, accepted: int, outcome: str, rollback: str) -> None:
        self.proposed += proposed
        self.accepted += accepted
        self.rounds += 1
        self.accepted_at.extend([0] * (proposed - len(self.accepted_at)))
        for i in range(accepted):
            self.accepted_at[i] += 1
        self.spans[outcome] = self.spans.get(outcome, 0) + 1
        self.repairs[rollback] = self.repairs.get(rollback, 0) + 1

    def __add__(self, other: DrafterStats) -> DrafterStats:
        accepted_at = zip_longest(self.accepted_at, other.accepted_at, fillvalue=0)
        return DrafterStats(
            proposed=self.proposed + other.proposed,
            accepted=self.accepted + other.accepted,
            rounds=self.rounds + other.rounds,
            accepted_at=[ours + theirs for ours, theirs in accepted_at],
            spans=_sum_by_key(self.spans, other.spans),
            repairs=_sum_by_key(self.repairs, other.repairs),
            draft_ms=self.draft_ms + other.draft_ms,
            verify_ms=self.verify_ms + other.verify_ms,
        )


def verification_outcome(proposed: int, accepted: int, stopped: bool) -> str:
    """Classify the end of a verified window: a key of `DrafterStats.spans`."""
    if stopped:
        return "stopped"
    if accepted == proposed:
        return "full"
    if accepted == 0:
        return "first_reject"
    return "tail_reject" if 2 * accepted >= proposed else "early_reject"


MIN_SPEEDUP_TOKENS: Final = 30
"""Output tokens — a repeat would not confirm the speed-up of fewer."""

MAX_STEP_DEVIATION: Final = 0.5
"""Share of the time of steps — more, and the machine decides the speed-up."""

ROUNDING: Final = 1.05
"""Ratio — tolerance of comparisons with an estimated speed-up."""

DRAFTER_FAILED: Final = "spec.off.drafter_failed"
"""Reason code of a drafter after an error; parameter `detail` is the error."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Permission of a drafter to draft for a request.

    `state` is observing, on or off; `reason` explains observing and off.
    """

    state: str
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Statistics of a finished sequence. Counts in tokens, times in milliseconds."""

    prompt_n: int
    cached_n: int  # of `prompt_n`: restored from the prefix cache
    predicted_n: int
    queue_ms: float  # from submission to admission
    prompt_ms: float  # from admission to the first output token
    predicted_ms: float  # from the first output token to the last
    seed: int
    drafters: dict[str, DrafterStats]
    speculation: Reason  # why it ran for this request or not
    strategy: str = "auto"  # of the request, reduced to the model's drafters
    strategy_notes: tuple[Reason, ...] = ()  # replaced parts of the requested strategy
    gates: dict[str, Gate] = field(default_factory=dict)
    image_n: int = 0  # of `prompt_n`: show images
    speedup: float | None = None  # estimate of plain time / time, in the timed steps
    step_deviation: float = 0.0  # share of the timed seconds by which steps differ from estimates
    restarts: int = 0  # recomputations of all tokens after a failure of the device
    context_n: int = 0  # context length of the model; 0 if unknown
    displaced: int = 0  # pauses in which the row was given to more urgent requests
    earlier_n: int = 0  # tokens of earlier generations of an answer with tool calls

    @property
    def context_left(self) -> int | None:
        """Tokens of the context behind prompt and output; None if unknown."""
        if not self.context_n:
            return None
        return max(0, self.context_n + self.earlier_n - self.prompt_n - self.predicted_n)

    @property
    def proposed(self) -> int:
        """Draft tokens verified by the target."""
        return sum(drafter.proposed for drafter in self.drafters.values())

    @property
    def accepted(self) -> int:
        """Draft tokens accepted as output."""
        return sum(drafter.accepted for drafter in self.drafters.values())

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.proposed)

    @property
    def steady_speedup(self) -> float | None:
        """The speed-up for people: None after few tokens, or if steps were uneven.

        None, too, above the tokens per step: no step with drafts is shorter than a plain one.
        """
        if self.speedup is None or self.predicted_n < MIN_SPEEDUP_TOKENS:
            return None
        most = self.predicted_n / max(1, self.predicted_n - self.accepted)
        uneven = self.step_deviation > MAX_STEP_DEVIATION
        return None if uneven or self.speedup > ROUNDING * most else self.speedup


@dataclass(frozen=True, slots=True)
class PromptText:
    """Text of a message; `role` is empty for a prompt without messages."""

    role: str
    text: str

    def __str__(self) -> str:
        return f"{self.role}: {self.text}" if self.role else self.text


@dataclass(frozen=True, slots=True)
class AppliedSetting:
    """Value of a setting in a request, as text, and the source of the value."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Prefixes of a model on disk, now; hits since the model was loaded."""

    off: Reason | None = None  # why writes, or reads too, are disabled
    pieces: int = 0
    nbytes: int = 0
    max_bytes: int = 0  # 0 without a disk cache
    hits: int = 0
    hit_tokens: int = 0
    written_today: int = 0  # bytes of this calendar day
    damaged: int = 0  # pieces dropped for a wrong checksum


@dataclass(frozen=True, slots=True)
class BeginningStats:
    """Expected beginnings of a loaded model's prompts."""

    done: int  # since the last request
    waiting: int
    computed_tokens: int  # while the server was idle
    budget_left_s: float  # seconds
    paused: Reason | None  # why waiting beginnings are not computed


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Prefix cache of a model: its size now, and counts since the model was loaded."""

    off: Reason | None  # why nothing is cached
    nbytes: int
    max_bytes: int
    tokens: int
    hits: int
    misses: int
    hit_tokens: int
    states_used: int  # restored recurrent states
    stored: dict[str, int]  # cache pieces by kind: rows, window, state
    evicted: dict[str, int]  # likewise
    asked: int  # insertions
    refused: int  # insertions without room
    disk: DiskStats = field(default_factory=DiskStats)

    @property
    def warning(self) -> Reason | None:
        """Reason why the cache stays empty, if every insertion was refused."""
        if self.asked == 0 or self.refused < self.asked:
            return None
        return Reason("prefix.stored_none", {"asked": self.asked, "limit": self.max_bytes})


def acceptance_rate(accepted: int, proposed: int) -> float | None:
    """Return accepted / proposed tokens; None if nothing was proposed."""
    return accepted / proposed if proposed else None


def joined(stats: Sequence[RequestStats]) -> RequestStats:
    """Sum the statistics of successive generations; all else is of the last."""
    *earlier, last = stats
    return replace(
        last,
        prompt_n=sum(each.prompt_n for each in stats),
        cached_n=sum(each.cached_n for each in stats),
        predicted_n=sum(each.predicted_n for each in stats),
        image_n=sum(each.image_n for each in stats),
        queue_ms=sum(each.queue_ms for each in stats),
        prompt_ms=sum(each.prompt_ms for each in stats),
        predicted_ms=sum(each.predicted_ms for each in stats),
        drafters=sum_drafters(stats),
        restarts=sum(each.restarts for each in stats),
        displaced=sum(each.displaced for each in stats),
        earlier_n=sum(each.prompt_n + each.predicted_n for each in earlier),
    )


def sum_drafters(answers: Iterable[RequestStats]) -> dict[str, DrafterStats]:
    total: dict[str, DrafterStats] = {}
    for stats in answers:
        total = add_drafters(total, stats.drafters)
    return total


def add_drafters(
    left: dict[str, DrafterStats], right: dict[str, DrafterStats]
) -> dict[str, DrafterStats]:
    """Return sums by name."""
    names = (*left, *(name for name in right if name not in left))
    none = DrafterStats()
    return {name: left.get(name, none) + right.get(name, none) for name in names}


def _sum_by_key(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {key: left.get(key, 0) + right.get(key, 0) for key in sorted(left | right)}


@dataclass(frozen=True, slots=True)
class Receipt:
    """Hashes (SHA-256) of the inputs and the answer of a choice."""

    id: str
    model: str
    weights: str
    tokenizer: str
    template: str
    dtype: str
    settings: str
    prompt: str  # of prompt ids
    answer: str  # of answer ids
    tokens: int
    seed: int
    versions: dict[str, str]
    kept: bool = True  # the answer is stored and can be verified by `id`
    exactness: str = ""  # the model's `ExactnessClaim` as text
    library: str = ""  # of the model's classes
    kv_bits: str = ""  # of quantized KV caches
