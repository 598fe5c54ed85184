"""Whether a row speculates now, with whom and how far, and the record of what came of it. Pure Python."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, DraftLength
from omlx.engine.isolation import isolate
from omlx.engine.sequence import Interval, Sequence
from omlx.engine.speculation.acceptance import Acceptance
from omlx.engine.speculation.cost_model import OUTLIER, WIDEST_WINDOW, CostModel
from omlx.engine.speculation.drafter import Draft, Drafter
from omlx.engine.speculation.drafters.grammar import GrammarDrafter
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.policy import RowPolicy, State
from omlx.engine.speculation.proposal import Choice, Proposal
from omlx.engine.strategy import Step, Strategy
from omlx.errors import Reason
from omlx.records import DrafterStats, Gate

MAX_PENDING: Final = 12
"""A longer window of accepted tokens (recurrent models) is committed by an empty draft first."""

SHADOW: Final = 16
"""How far a silent lookup is followed before it is asked again, in tokens."""

KEPT: Final = 16
"""How many steps, calm or in company, are learned from at once: learning takes time, and less if the code is warm."""


@dataclass(slots=True)
class _Shadow:
    """What a lookup would have proposed, and how much of it has come true."""

    offer: Proposal
    hits: int = 0


@dataclass(slots=True)
class _Row:
    """`drafters` are asked; `off` says of others, by name, why they are not, whatever the policy says. `kept` are steps
    not yet learned from: (tokens, interval, context)."""

    policy: RowPolicy
    drafters: list[Drafter]
    steps: dict[str, Step]
    off: dict[str, Reason]
    taken: Proposal | None = None
    shadow: _Shadow | None = None
    kept: list[tuple[Seq[int], Interval | None, int]] = field(default_factory=list)
    tallies: dict[str, DrafterStats] = field(default_factory=dict)
    drafting: float = 0.0
    expected: float = 0.0
    spent: float = 0.0
    plain: float = 0.0

    @property
    def gates(self) -> dict[str, Gate]:
        """What each drafter does, by name; first those that are not asked."""
        off = {name: Gate(State.OFF, why) for name, why in self.off.items()}
        return off | {d.name: Gate(*self.policy.state(d.name)) for d in self.drafters}

    def follow(self, new: Seq[int]) -> None:
        """Score the silent proposal against what came."""
        for token in new:
            if (shadow := self.shadow) is None:
                break
            followed = shadow.offer.tokens[:SHADOW]
            right = followed[shadow.hits] == token
            shadow.hits += right
            if not right or shadow.hits == len(followed):
                self.policy.shadowed(shadow.offer, len(followed), shadow.hits)
                self.shadow = None


@dataclass(slots=True)
class Speculator:
    """The drafters of one loaded model and what is known of their worth.

    `off` says why nobody here may draft at all (a cache that cannot go back); `no_draft` why there is no draft model.
    `draft_length` bounds requests that ask for no bounds of their own. `recurrent` targets leave accepted tokens pending;
    where `trims`, a rejected token costs nothing.
    """

    drafters: Seq[Drafter]
    off: Reason | None = None
    no_draft: Reason = field(default_factory=lambda: Reason("spec.off.no_draft_model"))
    draft_length: DraftLength = DEFAULT_DRAFT_LENGTH
    recurrent: bool = False
    trims: bool = False
    cost_model: CostModel = field(default_factory=CostModel)
    _priors: dict[str, Acceptance] = field(default_factory=dict)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _refused: dict[int, Reason | None] = field(default_factory=dict)
    _forced: GrammarDrafter = field(default_factory=GrammarDrafter)

    def refusal(self, sequence: Sequence, decoding: int) -> Reason | None:
        """Why this row may not draft while `decoding` rows decode, or None."""
        asked = sequence.request.speculation
        if asked.strategy.off:
            return Reason("spec.off.requested")
        if self.off is not None:
            return self.off
        row = self._row(sequence)
        if not row.drafters:
            return next(iter(row.off.values()), self.no_draft)
        if decoding > 1:
            return Reason("spec.paused.several_active", {"active": decoding})
        return None

    def refuses(self, sequence: Sequence, decoding: int) -> bool:
        """Record and return whether the row may not draft; `verdict` reports why."""
        self._refused[sequence.row] = self.refusal(sequence, decoding)
        return self._refused[sequence.row] is not None

    def would_draft(self, sequence: Sequence) -> bool:
        """Whether the row would draft now, going by what is committed. Counts as the decision for this step."""
        return self._choose(sequence) is not None

    def draft(self, sequence: Sequence) -> Draft | None:
        """A draft for a row that is not refused; never past the request's end, never on too long a window."""
        row = self._row(sequence)
        if sequence.pending > MAX_PENDING or (choice := self._choose(sequence)) is None:
            return None
        offer, k = choice
        drafter = next(d for d in row.drafters if d.name == offer.drafter)
        draft = None
        with isolate() as outcome:
            draft = drafter.draft(sequence, k)
        if outcome.error is not None:
            self.disable(sequence, outcome.error, drafter)
        if draft is None:
            return None
        pad = row.policy.padding(
            sequence.pending + draft.n, len(sequence.tokens), sequence.remaining - 1 - draft.n
        )
        row.taken = offer
        row.drafting = draft.seconds or row.policy.drafting(offer, draft.n, len(sequence.tokens))
        row.expected = row.drafting + self.cost_model.verify(
            sequence.pending + draft.n + pad, len(sequence.tokens)
        )
        if draft.seconds is not None:
            self.cost_model.learn_draft(
                draft.drafter, draft.n, offer.lag, len(sequence.tokens), draft.seconds
            )
        return replace(draft, pad=pad) if pad else draft

    def reason(self, sequence: Sequence) -> Reason:
        """Why this request is drafting or not, for whoever asks."""
        if any(tally.rounds for tally in self.tallies(sequence.row).values()):
            return Reason("spec.on")
        if (reason := self._refused.get(sequence.row)) is not None:
            return reason
        if len(sequence.tokens) <= sequence.prompt_len + 1:
            return Reason("spec.off.no_chance")
        row = self._rows.get(sequence.row)
        gates = row.gates.values() if row else ()
        closed = (g.reason for g in gates if g.state is State.OFF and g.reason)
        return next(closed, Reason("spec.observing"))

    def tallies(self, row: int) -> dict[str, DrafterStats]:
        """The row's counters, by drafter."""
        return self._rows[row].tallies if row in self._rows else {}

    def effective_strategy(self, sequence: Sequence) -> Strategy:
        """What is left of the request's strategy, given who drafts here."""
        here = set() if self.off is not None else {drafter.kind for drafter in self.drafters}
        return sequence.request.speculation.strategy.among(here)

    def gates(self, sequence: Sequence) -> dict[str, Gate]:
        """What the row's drafters do, by name; `draft` is a model that the strategy asks for and is not there."""
        row, asked = self._rows.get(sequence.row), sequence.request.speculation.strategy
        gates = row.gates if row else {}
        absent = asked.step("draft") is not None and all(d.kind != "draft" for d in self.drafters)
        return gates | ({"draft": Gate("off", self.no_draft)} if absent else {})

    def speedup(self, sequence: Sequence) -> float | None:
        """How fast the row's timed steps were, in plain decoding's speed; None if either is not measured."""
        row = self._rows.get(sequence.row)
        if row is not None:
            self._learn(row, sequence)
        return row.plain / row.spent if row is not None and row.plain and row.spent else None

    def disable(self, sequence: Sequence, error: Exception, by: Drafter | None = None) -> None:
        """A drafter raised, or (None) nobody knows which: what it holds for the row, or keeps, is unproven, and it is
        asked no more for this row."""
        row = self._row(sequence)
        reason = Reason("spec.off.drafter_failed", {"detail": f"{type(error).__name__}: {error}"})
        for drafter in row.drafters if by is None else (by,):
            with isolate():
                drafter.drop(sequence.row)
            with isolate():
                drafter.clear()
            row.off[drafter.name] = reason
        row.drafters, row.taken = [d for d in row.drafters if d.name not in row.off], None
        if by is None:
            self._refused[sequence.row] = reason

    def observe_verification(
        self, sequence: Sequence, drafter: str, proposed: int, accepted: int, span: str, repair: str
    ) -> None:
        """Record a verified window. `span` and `repair` name its class."""
        row = self._row(sequence)
        by = next((d for d in row.drafters if d.name == drafter), None)
        if by is not None:
            with isolate() as outcome:
                by.observe(sequence, accepted)
            if outcome.error is not None:
                self.disable(sequence, outcome.error, by)
                return
        if row.taken is not None:
            row.policy.verified(row.taken, proposed, accepted)
        row.tallies.setdefault(drafter, DrafterStats()).add_round(proposed, accepted, span, repair)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """So many tokens of a prompt were read, with nobody beside: about what so wide a pass takes."""
        if tokens > WIDEST_WINDOW:
            self.cost_model.target.learn_chunk(tokens, tokens, seconds)

    def observe_commit(self, sequence: Sequence, new: Seq[int], interval: Interval | None) -> None:
        """The row's newest tokens came, `interval` after those before, where nothing else ran meanwhile."""
        row = self._rows.get(sequence.row)
        if row is None:
            return
        row.kept.append((new, interval, len(sequence.tokens)))
        alone = interval is not None
        if row.taken is not None or (alone and not row.policy.calm) or len(row.kept) >= KEPT:
            # In a batch no decision asks the drafters, so their proposals are asked for here.
            self._learn(row, sequence, () if alone else self._offers(row, sequence))

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)
        self._refused.pop(row, None)
        for drafter in (self._forced, *self.drafters):
            with isolate():
                drafter.drop(row)

    def store(self, sequence: Sequence) -> None:
        for drafter in self.drafters:
            with isolate() as outcome:
                drafter.store(sequence)
            if outcome.error is not None:  # its prefixes are unproven; they cost only speed
                with isolate():
                    drafter.clear()

    def clear(self) -> None:
        """Forget what drafters keep of rows that have ended."""
        for drafter in self.drafters:
            with isolate():
                drafter.clear()

    def limit_bytes(self, max_bytes: int) -> None:
        """Let each drafter keep at most so much of rows that have ended."""
        for drafter in self.drafters:
            with isolate():
                drafter.limit_bytes(max_bytes)

    def _row(self, sequence: Sequence) -> _Row:
        row = self._rows.get(sequence.row)
        if row is None:
            asked = sequence.request.speculation
            steps = {d.name: step for d in self.drafters if (step := asked.strategy.step(d.kind))}
            if sequence.request.mask is not None:  # whatever the strategy names, unless it is off
                steps[self._forced.name] = Step(self._forced.kind)
            admitted = [d for d in (self._forced, *self.drafters) if d.name in steps]
            repeats = next(
                (d.repeats(sequence) for d in admitted if isinstance(d, NgramDrafter)), 0.0
            )
            draft_length = asked.draft_length or self.draft_length
            off = {d.name: Reason("spec.off.zero_window") for d in admitted if draft_length.max < 1}
            policy = RowPolicy(
                self.cost_model,
                self._priors,
                draft_length,
                recurrent=self.recurrent,
                trims=self.trims,
                repeats=repeats,
            )
            row = self._rows[sequence.row] = _Row(policy, [] if off else admitted, steps, off)
        return row

    def _choose(self, sequence: Sequence) -> Choice:
        row = self._row(sequence)
        offers = self._offers(row, sequence)
        if not offers or row.policy.rests(offers):
            return None
        self._learn(row, sequence, offers)
        return row.policy.choose(offers, sequence.pending, len(sequence.tokens))

    def _offers(self, row: _Row, sequence: Sequence) -> list[Proposal]:
        found, room = [], sequence.remaining - 1
        for drafter in row.drafters:
            step = row.steps[drafter.name]
            with isolate() as outcome:
                offer = drafter.propose(sequence, min(room, step.longest_draft or room), step)
                if offer is not None:
                    found.append(offer)
            if outcome.error is not None:
                self.disable(sequence, outcome.error, drafter)
        return found

    def _learn(self, row: _Row, sequence: Sequence, offers: Seq[Proposal] = ()) -> None:
        """From the steps that were kept: what they took, and what of it a lookup had foreseen. One of the offers is
        followed next."""
        for new, interval, context in row.kept:
            if interval is not None:
                row.policy.timed(row.taken, len(new), interval, context)
                self._clock(row, sequence, len(new), interval.seconds, context)
            if row.taken is not None and row.taken.match:
                row.shadow = None  # it was verified, which says more
            row.follow(new)
            row.taken = None  # steps in company are nobody's round
        row.kept.clear()
        row.shadow = row.shadow or next((_Shadow(offer) for offer in offers if offer.tokens), None)

    def _clock(
        self, row: _Row, sequence: Sequence, tokens: int, seconds: float, context: int
    ) -> None:
        """Add a timed step to what the request is told; one that sleep or swap held up says nothing of its speed."""
        if row.taken is not None and (tally := row.tallies.get(row.taken.drafter)) is not None:
            drafting = min(row.drafting, seconds)
            tally.draft_ms += 1000 * drafting
            tally.verify_ms += 1000 * (seconds - drafting)
        plain = self.cost_model.target.plain(context)
        if plain and seconds <= OUTLIER * (row.expected if row.taken is not None else plain):
            row.plain, row.spent = row.plain + tokens * plain, row.spent + seconds


def span_class(proposed: int, accepted: int, stopped: bool) -> str:
    """Names how a verified window ended: full, tail_reject, early_reject, first_reject or stopped."""
    if stopped:
        return "stopped"
    if accepted == proposed:
        return "full"
    if accepted == 0:
        return "first_reject"
    return "tail_reject" if 2 * accepted >= proposed else "early_reject"
