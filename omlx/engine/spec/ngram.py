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

from omlx.engine.masking import permitted
from omlx.engine.sequence import Sequence
from omlx.engine.spec.drafter import Draft, Drafter
from omlx.engine.spec.policy import LONGEST, UNBOUND, Offer
from omlx.engine.spec.strategy import Step

GRAM: Final = 3
MAX_CHAIN: Final = 64
MAX_MATCH: Final = 64
RECENT: Final = 2000
"""How much of a prompt is searched for repetition."""

BARRIER: Final = -1
"""An id that no tokenizer has: no match runs across it."""


@dataclass(frozen=True, slots=True)
class Match:
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

    def lookup(self, shortest: int = GRAM) -> Match | None:
        """The longest earlier match of the present, the newest of equals; at least `shortest` tokens long."""
        known = self.tokens
        size = len(known)
        best = Match(0, 0)
        for at in self.places():
            # A longer match than the best must agree at the best's own length first.
            if best.length and (at <= best.length or known[at - 1 - best.length] != known[size - 1 - best.length]):
                continue
            length = GRAM
            limit = min(MAX_MATCH, at)
            while length < limit and known[at - 1 - length] == known[size - 1 - length] != BARRIER:
                length += 1
            if length > best.length:
                best = Match(at, length)
                if length == MAX_MATCH:
                    break
        return best if best.length >= max(shortest, GRAM) else None

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
                proposal = self.after(found, LONGEST)
        return hits

    def after(self, match: Match, limit: int, ends: Container[int] = ()) -> tuple[int, ...]:
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


class Ngram(Drafter):
    """Proposes all that followed: how far it is worth following is for the policy to say. It keeps no index: one is
    made anew from a prompt within milliseconds."""

    kind: ClassVar[str] = "ngram"
    name = "ngram"

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def offer(self, sequence: Sequence, limit: int, step: Step) -> Offer | None:
        proposal = self.peek(sequence, min(limit, LONGEST), step)
        return None if proposal is None else proposal[0]

    def propose(self, sequence: Sequence, limit: int) -> Draft | None:
        proposal = self.peek(sequence, limit)
        tokens = () if proposal is None else permitted(sequence.request.mask, proposal[1])
        return Draft(self.name, len(tokens), tokens) if tokens else None

    def peek(self, sequence: Sequence, limit: int, step: Step = UNBOUND) -> tuple[Offer, tuple[int, ...]] | None:
        """What it would propose, for comparison with what comes anyway. Nothing behind what ends the answer."""
        index = self._current(sequence).index
        found = index.lookup(step.shortest_match or GRAM)
        tokens = index.after(found, limit, sequence.request.stop_ids) if found else ()
        return (Offer(self.name, len(tokens), match=found.length, step=step), tokens) if found and tokens else None

    def repeats(self, sequence: Sequence) -> float:
        """The share of the prompt's last tokens that lookups in what stood before them would have predicted."""
        return self._current(sequence).repeats

    def drop(self, row: int) -> None:
        self._rows.pop(row, None)

    def _current(self, sequence: Sequence) -> _Row:
        """The row's index, brought up to date."""
        row = self._rows.get(sequence.row)
        if row is None:
            prediction = sequence.request.speculation.prediction
            index = NgramIndex([*prediction, BARRIER] if prediction else [])
            row = self._rows[sequence.row] = _Row(index, len(index.tokens))
            prompt = sequence.request.tokens
            index.extend(list(prompt[:-RECENT]))
            row.repeats = index.predicted(prompt[-RECENT:]) / max(1, min(len(prompt), RECENT))
        index = row.index
        known = len(index.tokens) - row.offset
        if known < len(sequence.tokens):
            index.extend(sequence.tokens[known:])
        return row


@dataclass(slots=True)
class _Row:
    """`offset` is where the sequence's own tokens begin in the index, behind the prediction."""

    index: NgramIndex
    offset: int
    repeats: float = 0.0
