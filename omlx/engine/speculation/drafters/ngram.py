"""Self-speculation: the request's own tokens as the draft (prompt lookup; Saxena 2023, llama.cpp's ngram drafts).

An index of all 3-grams, kept up to date token by token, each with the newest positions where it ended. A lookup finds
the earlier place whose past agrees with the present for longest; what followed there is the proposal. Pure Python:
32k tokens index in some 10 ms, a lookup takes microseconds.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar, Final

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.masking import allowed_prefix
from omlx.engine.sequence import Sequence
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.proposal import Draft, Proposal
from omlx.engine.strategy import Step

GRAM: Final = 3
MAX_CHAIN: Final = 64
MAX_MATCH: Final = 64
TELLING: Final = 16
"""Of two matches so long, the longer one says no more of what comes, unless longer ones are asked for."""
RECENT: Final = 2000
"""How much of a prompt is searched for repetition."""

BARRIER: Final = -1
"""An id that no tokenizer has: no match runs across it."""


@dataclass(frozen=True, slots=True)
class NgramMatch:
    """The present repeats an earlier place: `length` tokens agree, and `at` is the position behind them."""

    at: int
    length: int


class NgramIndex:
    """All places where three tokens stood before."""

    def __init__(self, tokens: list[int] | None = None) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, int, int], list[int]] = {}
        self.extend(tokens or [])

    def extend(self, tokens: list[int]) -> None:
        """Append tokens. The last gram is indexed with the token after it, so a lookup never finds itself."""
        known = self.tokens
        first = max(len(known) - 1, GRAM - 1)
        known += tokens
        ends = self._ends
        for i in range(first, len(known) - 1):
            gram = (known[i - 2], known[i - 1], known[i])
            places = ends.get(gram)
            if places is None:
                ends[gram] = [i + 1]
            else:
                places.append(i + 1)
                if len(places) > 2 * MAX_CHAIN:
                    del places[:MAX_CHAIN]

    def lookup(self, telling: int = TELLING) -> NgramMatch | None:
        """The longest earlier match of the present; those of `telling` tokens and more are equal. Of equals, those that
        most agree on what follows, and of these the newest: in a run of one token all places agree but the end of the
        run before."""
        longest, present, by_next = 0, list[int](), dict[int, list[int]]()
        for at in self.places():
            if self.tokens[max(0, at - longest) : at] != present:
                continue
            length = self._length(at, max(GRAM, longest), telling)
            if length > longest:
                longest, present, by_next = length, self.tokens[-length:], {}
            by_next.setdefault(self.tokens[at], []).append(at)
        newest = max(by_next.values(), key=len, default=[0])[0]
        return NgramMatch(newest, self._length(newest, longest, MAX_MATCH)) if newest else None

    def _length(self, at: int, known: int, limit: int) -> int:
        """How many tokens before `at` are those before the present: `known` ones, and how many more up to a limit."""
        tokens, size = self.tokens, len(self.tokens)
        limit = min(limit, at)
        while known < limit and tokens[at - 1 - known] == tokens[size - 1 - known] != BARRIER:
            known += 1
        return known

    def places(self) -> list[int]:
        """Where the last three tokens stood before, newest first: the positions behind them."""
        if len(self.tokens) < GRAM:
            return []
        oldest, middle, newest = self.tokens[-GRAM:]
        return self._ends.get((oldest, middle, newest), [])[: -MAX_CHAIN - 1 : -1]

    def predicted(self, tokens: Seq[int]) -> int:
        """Append tokens one by one, and count those that a lookup had said would come."""
        hits = 0
        proposal: tuple[int, ...] = ()
        for token in tokens:
            right = bool(proposal) and proposal[0] == token
            hits += right
            self.extend([token])
            proposal = proposal[1:] if right else ()
            if not proposal and (found := self.lookup()) is not None:
                proposal = self.after(found, MAX_DRAFT_LENGTH)
        return hits

    def after(self, match: NgramMatch, limit: int, ends: Container[int] = ()) -> tuple[int, ...]:
        """What followed the match, at most `limit` tokens, and none behind the first of `ends`. A match that runs into
        the present goes on through it."""
        found: list[int] = []
        known, size = self.tokens, len(self.tokens)
        for i in range(match.at, match.at + limit):
            token = known[i] if i < size else found[i - size]
            if token == BARRIER:
                break
            found.append(token)
            if token in ends:
                break
        return tuple(found)


class NgramDrafter(Drafter):
    """Proposes all that followed: how far it is worth following is for the policy to say. It keeps no index: one is
    made anew from a prompt within milliseconds."""

    kind: ClassVar[str] = "ngram"
    name = "ngram"

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def propose(self, sequence: Sequence, limit: int, step: Step) -> Proposal | None:
        found = self._current(sequence).match
        if found is None or found.length < (step.shortest_match or GRAM):
            return None
        tokens = self._after(sequence, min(limit, MAX_DRAFT_LENGTH))
        return (
            Proposal(self.name, len(tokens), match=found.length, step=step, tokens=tokens)
            if tokens
            else None
        )

    def draft(self, sequence: Sequence, limit: int) -> Draft | None:
        tokens = allowed_prefix(sequence.request.mask, self._after(sequence, limit))
        return Draft(self.name, len(tokens), tokens) if tokens else None

    def repeats(self, sequence: Sequence) -> float:
        """The share of the prompt's last tokens that lookups in what stood before them would have predicted."""
        return self._current(sequence).repeats

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def _after(self, sequence: Sequence, limit: int) -> tuple[int, ...]:
        """What followed the match, if there is one, and nothing behind what ends the answer."""
        row = self._current(sequence)
        return row.index.after(row.match, limit, sequence.request.stop_ids) if row.match else ()

    def _current(self, sequence: Sequence) -> _Row:
        """The row's index and what it finds, brought up to date."""
        row = self._rows.get(sequence.row)
        if row is None:
            prediction = sequence.request.speculation.prediction
            index = NgramIndex([*prediction, BARRIER] if prediction else [])
            asked = sequence.request.speculation.strategy.step(self.kind)
            telling = max(TELLING, (asked and asked.shortest_match) or 0)
            row = self._rows[sequence.row] = _Row(index, len(index.tokens), telling)
            prompt = sequence.request.tokens
            index.extend(list(prompt[:-RECENT]))
            row.repeats = index.predicted(prompt[-RECENT:]) / max(1, min(len(prompt), RECENT))
        if row.seen < len(sequence.tokens):
            row.index.extend(sequence.tokens[len(row.index.tokens) - row.offset :])
            row.match, row.seen = row.index.lookup(row.telling), len(sequence.tokens)
        return row


@dataclass(slots=True)
class _Row:
    """`offset` is where the sequence's own tokens begin in the index, behind the prediction; `match` is what a lookup
    finds behind the `seen` ones."""

    index: NgramIndex
    offset: int
    telling: int
    seen: int = 0
    match: NgramMatch | None = None
    repeats: float = 0.0
