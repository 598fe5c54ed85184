"""What may be said at every place of an answer that must have a form.

Something may come before the answer that no form binds: a thought between the model's markers, or in its place the call
of a tool. Those pass; the answer itself is held to its form by llguidance's matcher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from llguidance import LLMatcher

from omlx.engine.masking import allows, with_ids
from omlx.errors import EngineError


class Open(Enum):
    """Places that only the end of the output ends."""

    ANSWER = auto()
    CALL = auto()


@dataclass(frozen=True, slots=True)
class Thought:
    """Inside of a thought, which `end` closes; the answer comes `behind` it, not before."""

    end: tuple[int, ...]
    behind: Before


@dataclass(frozen=True, slots=True)
class Marker:
    """Tokens that lead somewhere else; inside of one, those that are left."""

    ids: tuple[int, ...]
    to: Place


@dataclass(frozen=True, slots=True)
class Before:
    """Where the answer begins, unless one of the markers comes."""

    markers: tuple[Marker, ...] = ()


Place: TypeAlias = Open | Thought | Marker | Before


@dataclass(slots=True, eq=False)
class AnswerMask:
    """The engine's `TokenMask`. `past` holds, for each token, the place before it and whether the matcher took it."""

    matcher: LLMatcher
    place: Place
    without_stops: bytes
    past: list[tuple[Place, bool]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.place is Open.ANSWER and self.matcher.is_stopped()

    def bits(self) -> bytes | None:
        match self.place:
            case Open.CALL:
                return None
            case Open.ANSWER:
                return self._answer()
            case Thought():
                return self.without_stops
            case Marker(ids=ids):
                return with_ids(bytes(len(self.without_stops)), ids[:1])
            case Before(markers=markers):
                return with_ids(self._answer(), (marker.ids[0] for marker in markers))

    def advance(self, token: int) -> bool:
        matched = self.place is Open.ANSWER or isinstance(self.place, Before)
        matched = matched and self.matcher.try_consume_tokens([token]) == 1
        following = Open.ANSWER if matched else self._elsewhere(token)
        if following is None:
            self._check()
            return False
        self.past.append((self.place, matched))
        self.tokens.append(token)
        self.place = following
        return True

    def rollback(self, n: int) -> None:
        if n == 0:
            return
        gone = self.past[-n:]
        del self.past[-n:], self.tokens[-n:]
        self.place = gone[0][0]
        self.matcher.rollback(sum(matched for _, matched in gone))
        self._check()

    def _elsewhere(self, token: int) -> Place | None:
        """Where a token leads that is no part of the answer; None if it may not come."""
        match self.place:
            case Open.CALL:
                return Open.CALL
            case Thought(end=end, behind=behind) as thought:
                closed = (*self.tokens[-len(end) :], token)[-len(end) :] == end
                return (behind if closed else thought) if allows(self.without_stops, token) else None
            case Marker() as marker:
                return _inside(marker, token)
            case Before(markers=markers):
                return next((place for each in markers if (place := _inside(each, token)) is not None), None)
        return None

    def _answer(self) -> bytes:
        bits = self.matcher.compute_bitmask()
        self._check()
        return bits

    def _check(self) -> None:
        """Raises EngineError if the matcher has given up: a grammar may be too much for its limits at some place."""
        if self.matcher.is_error():
            raise EngineError("engine.grammar", detail=self.matcher.get_error())


def _inside(marker: Marker, token: int) -> Place | None:
    """Behind the first token of a marker."""
    if token != marker.ids[0]:
        return None
    return Marker(marker.ids[1:], marker.to) if marker.ids[1:] else marker.to
