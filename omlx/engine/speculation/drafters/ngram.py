"""Prompt lookup (n-gram drafter): the request's own earlier tokens as the draft.

An index of all 3-grams holds the newest positions where each ended. A lookup finds the earlier
position whose past agrees longest with the end of the text; the tokens that followed it are the
proposal (Saxena 2023; llama.cpp's ngram drafts). Pure Python: 32k tokens are indexed in some 10 ms,
a lookup takes microseconds.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar, Final

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.speculation.drafter import Draft, Drafter, Proposal
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.masking import allowed_prefix
from omlx.engine.step.row import Row

GRAM: Final = 3
"""Tokens of the shortest match: shorter ones are too often accidental."""

MAX_POSITIONS: Final = 64
"""Earlier positions of one 3-gram that a lookup compares, the newest ones."""

MAX_MATCH: Final = 64
"""Tokens up to which the length of a match is counted."""

LONG_MATCH: Final = 16
"""Tokens. Matches at least this long count as equal: a longer one predicts no better."""

BARRIER: Final = -1
"""Ids up to this one are in no tokenizer: no match extends across them. Images have lesser ones."""


@dataclass(frozen=True, slots=True)
class NgramMatch:
    """The last `length` tokens also stand before position `at`."""

    at: int
    length: int


class NgramIndex:
    """All positions at which each 3-gram of `tokens` ended."""

    def __init__(self, tokens: list[int] | None = None) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, int, int], list[int]] = {}
        self.extend(tokens or [])

    def extend(self, tokens: list[int]) -> None:
        """Append tokens. The last 3-gram is added when a token follows: it would match itself."""
        known = self.tokens
        first = max(len(known) - 1, GRAM - 1)
        known += tokens
        ends = self._ends
        for i in range(first, len(known) - 1):
            gram = (known[i - 2], known[i - 1], known[i])
            positions = ends.get(gram)
            if positions is None:
                ends[gram] = [i + 1]
            else:
                positions.append(i + 1)
                if len(positions) > 2 * MAX_POSITIONS:
                    del positions[:MAX_POSITIONS]

    def lookup(self, long: int = LONG_MATCH) -> NgramMatch | None:
        """Return the longest match; from `long` tokens on, all lengths are equal.

        Among the longest matches, the most frequent next token wins, and of its positions the
        newest. The newest match alone would be wrong in a run of one token: it may be the end of an
        earlier run.
        """
        longest, suffix, by_next = 0, list[int](), dict[int, list[int]]()
        for at in self.positions():
            if self.tokens[max(0, at - longest) : at] != suffix:
                continue
            length = self._length(at, max(GRAM, longest), long)
            if length > longest:
                longest, suffix, by_next = length, self.tokens[-length:], {}
            by_next.setdefault(self.tokens[at], []).append(at)
        newest = max(by_next.values(), key=len, default=[0])[0]
        if not newest:
            return None
        return NgramMatch(newest, self._length(newest, longest, MAX_MATCH))

    def _length(self, at: int, known: int, limit: int) -> int:
        """Return the length of the match before `at`, up to `limit`, if `known` tokens agree."""
        tokens, size = self.tokens, len(self.tokens)
        limit = min(limit, at)
        while known < limit and tokens[at - 1 - known] == tokens[size - 1 - known] > BARRIER:
            known += 1
        return known

    def positions(self) -> list[int]:
        """Return the positions behind earlier occurrences of the last 3-gram, newest first."""
        if len(self.tokens) < GRAM:
            return []
        oldest, middle, newest = self.tokens[-GRAM:]
        if min(oldest, middle, newest) <= BARRIER:
            return []
        return self._ends.get((oldest, middle, newest), [])[: -MAX_POSITIONS - 1 : -1]

    def after(self, match: NgramMatch, limit: int, ends: Container[int] = ()) -> tuple[int, ...]:
        """Return what followed a match: at most `limit` tokens, up to the first of `ends`.

        Beyond the end of the text it continues with its own tokens.
        """
        proposal: list[int] = []
        known, size = self.tokens, len(self.tokens)
        for i in range(match.at, match.at + limit):
            token = known[i] if i < size else proposal[i - size]
            if token <= BARRIER:
                break
            proposal.append(token)
            if token in ends:
                break
        return tuple(proposal)


@dataclass(slots=True)
class _RowLookup:
    """One row's index, and the match after its first `seen` tokens.

    The row's own tokens begin at `offset` in the index, after those of the prediction. `long` as
    in `NgramIndex.lookup`.
    """

    index: NgramIndex
    offset: int
    long: int
    seen: int = 0
    match: NgramMatch | None = None


class NgramDrafter(Drafter):
    """Proposes all that followed the longest match. Caches nothing: indexing takes milliseconds."""

    kind: ClassVar[str] = "ngram"
    name = "ngram"

    def __init__(self) -> None:
        self._rows: dict[int, _RowLookup] = {}

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        match = self._current(row).match
        if match is None or match.length < (clause.shortest_match or GRAM):
            return None
        tokens = self._after(row, min(limit, MAX_DRAFT_LENGTH))
        if not tokens:
            return None
        return Proposal(self.name, len(tokens), match=match.length, clause=clause, tokens=tokens)

    def draft(self, row: Row, limit: int) -> Draft | None:
        tokens = allowed_prefix(row.mask, self._after(row, limit))
        if not tokens:
            return None
        return Draft(self.name, len(tokens), tokens)

    def drop(self, row_id: int) -> None:
        self._rows.pop(row_id, None)

    def _after(self, row: Row, limit: int) -> tuple[int, ...]:
        """Return what followed the match, up to a stop token."""
        lookup = self._current(row)
        if lookup.match is None:
            return ()
        return lookup.index.after(lookup.match, limit, row.request.stop_ids)

    def _current(self, row: Row) -> _RowLookup:
        """Return the row's index and match, brought up to date."""
        lookup = self._rows.get(row.id)
        if lookup is None:
            lookup = self._rows[row.id] = self._new_row(row)
        if lookup.seen < len(row.tokens):
            lookup.index.extend(row.tokens[len(lookup.index.tokens) - lookup.offset :])
            lookup.match, lookup.seen = lookup.index.lookup(lookup.long), len(row.tokens)
        return lookup

    def _new_row(self, row: Row) -> _RowLookup:
        speculation = row.request.speculation
        prediction = speculation.prediction
        index = NgramIndex([*prediction, BARRIER] if prediction else [])
        clause, long = speculation.strategy.clause(self.kind), LONG_MATCH
        if clause is not None and clause.shortest_match is not None:
            long = max(long, clause.shortest_match)
        return _RowLookup(index, len(index.tokens), long)
