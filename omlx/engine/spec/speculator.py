"""Whether a row speculates now, with whom and how far, and the record of what came of it. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Final, Protocol

from omlx.engine.sequence import Sequence, Tally
from omlx.engine.spec.drafter import Draft, Drafter
from omlx.engine.types import Reason, SpeculationMode

MAX_PENDING: Final = 12
"""A longer window of accepted tokens (recurrent models) is committed by an empty draft first."""


class Policy(Protocol):
    """How many tokens to draft next."""

    def draft_tokens(self, sequence: Sequence, drafter: Drafter) -> int: ...


class FixedWindow:
    """The number the request asks for, else always the same."""

    def __init__(self, draft_tokens: int) -> None:
        self._draft_tokens = draft_tokens

    def draft_tokens(self, sequence: Sequence, drafter: Drafter) -> int:
        asked = sequence.request.speculation.num_draft_tokens
        return self._draft_tokens if asked is None else asked


class Speculator:
    """`off` says why nobody here may draft at all: no draft model, or a cache that cannot go back."""

    def __init__(self, drafters: Seq[Drafter], policy: Policy, off: Reason | None = None) -> None:
        self.drafters = list(drafters)
        self._policy = policy
        self._off = off
        self._gave_up: dict[int, Reason] = {}

    def refusal(self, sequence: Sequence, decoding: int) -> Reason | None:
        """Why this row would not draft while `decoding` rows decode, or None."""
        if sequence.request.speculation.mode is SpeculationMode.OFF:
            return Reason("spec.off.requested")
        if self._off is not None:
            return self._off
        if sequence.row in self._gave_up:
            return self._gave_up[sequence.row]
        if not self.drafters:
            return Reason("spec.off.no_draft_model")
        if self._policy.draft_tokens(sequence, self.drafters[0]) < 1:
            return Reason("spec.off.zero_window")
        if decoding > 1:
            return Reason("spec.paused.several_active", {"active": decoding})
        return None

    def propose(self, sequence: Sequence) -> Draft | None:
        """A draft for a row that is not refused; never past the request's end, never on too long a window."""
        if sequence.pending > MAX_PENDING:
            return None
        for drafter in self.drafters:
            limit = min(self._policy.draft_tokens(sequence, drafter), sequence.room - 1)
            if (draft := drafter.propose(sequence, limit)) is not None:
                return draft
        return None

    def give_up(self, sequence: Sequence, error: Exception) -> Reason:
        """A drafter raised: the row drafts no more. Returns the reason."""
        reason = Reason("spec.off.drafter_failed", {"detail": f"{type(error).__name__}: {error}"})
        self._gave_up[sequence.row] = reason
        return reason

    def observe(self, sequence: Sequence, drafter: str, proposed: int, accepted: int, span: str, repair: str) -> None:
        """Record a verified window. `span` and `repair` name its class."""
        for candidate in self.drafters:
            if candidate.name == drafter:
                candidate.observe(sequence, accepted)
        tally = sequence.tallies.setdefault(drafter, Tally())
        tally.proposed += proposed
        tally.accepted += accepted
        tally.rounds += 1
        tally.accepted_at.extend([0] * (proposed - len(tally.accepted_at)))
        for i in range(accepted):
            tally.accepted_at[i] += 1
        tally.spans[span] = tally.spans.get(span, 0) + 1
        tally.repairs[repair] = tally.repairs.get(repair, 0) + 1

    def drop(self, row: int) -> None:
        self._gave_up.pop(row, None)
        for drafter in self.drafters:
            drafter.drop(row)

    def store(self, row: int, entry: int) -> None:
        if row in self._gave_up:  # what a drafter holds after it raised is unproven
            return
        for drafter in self.drafters:
            drafter.store(row, entry)

    def restore(self, entry: int, row: int, length: int) -> None:
        for drafter in self.drafters:
            drafter.restore(entry, row, length)

    def evict(self, entry: int) -> None:
        for drafter in self.drafters:
            drafter.evict(entry)


def span_class(proposed: int, accepted: int, stopped: bool) -> str:
    """Names how a verified window ended: full, tail_reject, early_reject, first_reject or stopped."""
    if stopped:
        return "stopped"
    if accepted == proposed:
        return "full"
    if accepted == 0:
        return "first_reject"
    return "tail_reject" if 2 * accepted >= proposed else "early_reject"
