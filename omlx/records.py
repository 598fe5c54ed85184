"""Statistics of requests, drafters and prefix caches: one record of each, for engine, API, metrics,
log and dashboard.

The engine fills them in. Above it they are read only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from omlx.errors import Reason


@dataclass(slots=True)
class DrafterStats:
    """What one drafter did, in one request or in several.

    A round is one draft-and-verify iteration. `accepted_at[i]` counts the rounds in which the first
    i + 1 draft tokens were accepted; `spans` counts rounds by how their window ended, `repairs` by
    how the cache was rolled back.

    Times are of rounds that no other request shared, so of most and not of all. `draft_ms` is
    measured where drafting is timed separately, and estimated by the cost model elsewhere; a prompt
    lookup counts as 0. `verify_ms` is the rest of the round: the target's pass and the host's work.
    """

    proposed: int = 0
    accepted: int = 0
    rounds: int = 0
    accepted_at: list[int] = field(default_factory=list)
    spans: dict[str, int] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)
    draft_ms: float = 0.0
    verify_ms: float = 0.0

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.proposed)

    def add_round(self, proposed: int, accepted: int, outcome: str, rollback: str) -> None:
        """Count one verified window, in place."""
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
    """Name how a verified window ended: a key of `DrafterStats.spans`."""
    if stopped:
        return "stopped"
    if accepted == proposed:
        return "full"
    if accepted == 0:
        return "first_reject"
    return "tail_reject" if 2 * accepted >= proposed else "early_reject"


DRAFTER_FAILED: Final = "spec.off.drafter_failed"
"""The reason of a drafter that raised an error; its parameter `detail` says which."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a drafter may draft for a request.

    `state` is observing, on or off; `reason` says why, unless it is on.
    """

    state: str
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished sequence. Counts in tokens, times in milliseconds.

    `cached_n` of the `prompt_n` prompt tokens were restored from the prefix cache, `image_n` show
    images. `queue_ms` lasts from submission to admission, `prompt_ms` to the first output token,
    `predicted_ms` from the first output token to the last.
    """

    prompt_n: int
    cached_n: int
    predicted_n: int
    queue_ms: float
    prompt_ms: float
    predicted_ms: float
    seed: int
    drafters: dict[str, DrafterStats]
    speculation: Reason
    """Whether speculation ran for this request, and if not, why not."""
    strategy: str = "auto"
    """The request's strategy, reduced to the drafters that the model has."""
    strategy_notes: tuple[Reason, ...] = ()
    """Parts of the requested strategy that were read as something else."""
    gates: dict[str, Gate] = field(default_factory=dict)
    image_n: int = 0
    speedup: float | None = None
    """Throughput over that of plain decoding, in the steps that no other request shared."""
    restarts: int = 0
    """How often its tokens were computed again after a failure of the device."""

    @property
    def proposed(self) -> int:
        """Draft tokens that the target verified."""
        return sum(drafter.proposed for drafter in self.drafters.values())

    @property
    def accepted(self) -> int:
        """Draft tokens that became output."""
        return sum(drafter.accepted for drafter in self.drafters.values())

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.accepted, self.proposed)


@dataclass(frozen=True, slots=True)
class DiskStats:
    """One model's prefixes on disk: how many pieces and bytes there are now, of at most
    `max_bytes`, 0 where there are none; hits since the model was loaded.

    `off` says why nothing is written, or nothing is read either. `written_today` are the bytes of
    this calendar day, `damaged` counts pieces that were dropped because of their checksum.
    """

    off: Reason | None = None
    pieces: int = 0
    nbytes: int = 0
    max_bytes: int = 0
    hits: int = 0
    hit_tokens: int = 0
    written_today: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class BeginningStats:
    """Beginnings of one loaded model's prompts that return: how many were dealt with since it was
    loaded, how many wait, and why if nothing is computed though some do.

    `computed_tokens` were computed while the server was idle; `budget_left_s` are seconds.
    """

    done: int
    waiting: int
    computed_tokens: int
    budget_left_s: float
    paused: Reason | None


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """One model's prefix cache: its size now, and counts since the model was loaded.

    `off` says why nothing is cached. `stored` and `evicted` count cache pieces by kind (rows,
    window, state); `states_used` counts restored recurrent states. Of `asked` insertions, `refused`
    found no room.
    """

    off: Reason | None
    nbytes: int
    max_bytes: int
    tokens: int
    hits: int
    misses: int
    hit_tokens: int
    states_used: int
    stored: dict[str, int]
    evicted: dict[str, int]
    asked: int
    refused: int
    disk: DiskStats = field(default_factory=DiskStats)

    @property
    def warning(self) -> Reason | None:
        """Why the cache stays empty, if every insertion was refused."""
        if self.asked == 0 or self.refused < self.asked:
            return None
        return Reason("prefix.stored_none", {"asked": self.asked, "limit": self.max_bytes})


def acceptance_rate(accepted: int, proposed: int) -> float | None:
    """Accepted / proposed tokens; None if nothing was proposed."""
    return accepted / proposed if proposed else None


def sum_drafters(answers: Iterable[RequestStats]) -> dict[str, DrafterStats]:
    """Each drafter's statistics over all of these answers, by its name."""
    total: dict[str, DrafterStats] = {}
    for stats in answers:
        for name, drafter in stats.drafters.items():
            total[name] = total.get(name, DrafterStats()) + drafter
    return total


def _sum_by_key(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {key: left.get(key, 0) + right.get(key, 0) for key in sorted(left | right)}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one choice was computed from: hashes (SHA-256) of weights, tokenizer, chat template,
    settings, prompt ids and answer ids. `kept`: it can be verified by its id. `exactness` is what
    was measured and promised of its model.
    """

    id: str
    model: str
    weights: str
    tokenizer: str
    template: str
    dtype: str
    settings: str
    prompt: str
    answer: str
    tokens: int
    seed: int
    versions: dict[str, str]
    kept: bool = True
    exactness: str = ""
