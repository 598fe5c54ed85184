"""What may be said at every place of an answer that must have a form, or whose calls must.

Something may come before the answer that no form binds: a thought between the model's markers, or in its place the call
of a tool. Those pass; the answer itself is held to its form by llguidance's matcher. Where an answer is free but its
calls are not, each of them is held by a matcher of its own, from behind the marker that opens it to its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from llguidance import LLMatcher

from omlx.engine.masking import allows, with_ids
from omlx.errors import EngineError


@dataclass(frozen=True, slots=True)
class Call:
    """Behind the marker that opens a call: the `grammar`, which is only copied, binds it to its end."""

    ids: tuple[int, ...]
    grammar: LLMatcher


@dataclass(frozen=True, slots=True)
class Free:
    """Anything may come, the end too. A `call` that its marker opens is held to its grammar, wherever it begins; not
    so in a thought, which the `thought`'s marker opens as the very first that is said."""

    call: Call | None = None
    thought: Marker | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Inside of what a matcher binds. `then` is the place behind its end; None: the output ends there."""

    matcher: LLMatcher
    then: Free | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """Inside of a thought, which `end` closes; what is due comes `behind` it, so it is not the end of the output
    unless nothing is due."""

    end: tuple[int, ...]
    behind: Place


@dataclass(frozen=True, slots=True)
class Marker:
    """Tokens that preamble somewhere else; inside of one, those that are left."""

    ids: tuple[int, ...]
    to: Place


@dataclass(frozen=True, slots=True)
class Before:
    """Where the answer begins, unless one of the markers comes."""

    answer: Held
    markers: tuple[Marker, ...] = ()


Place: TypeAlias = Free | Held | Thought | Marker | Before | Call


@dataclass(slots=True, eq=False)
class GrammarMask:
    """The engine's `TokenMask`. `past` holds, for each token, the place before it and the matcher that took it."""

    place: Place
    without_stops: bytes
    past: list[tuple[Place, LLMatcher | None]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return (
            isinstance(self.place, Held)
            and self.place.then is None
            and self.place.matcher.is_stopped()
        )

    def bits(self) -> bytes | None:
        match self.place:
            case Held(matcher=matcher):
                return _mask(matcher)
            case Thought(behind=behind):
                return None if isinstance(behind, Free) else self.without_stops
            case Marker(ids=ids):
                return with_ids(bytes(len(self.without_stops)), ids[:1])
            case Before(answer=answer, markers=markers):
                return with_ids(_mask(answer.matcher), (marker.ids[0] for marker in markers))
        return None

    def advance(self, token: int) -> bool:
        held = self.place.answer if isinstance(self.place, Before) else self.place
        if isinstance(held, Held) and held.matcher.try_consume_tokens([token]) == 1:
            _check(held.matcher)
            self._go(token, _behind(held), held.matcher)
            return True
        if (following := self._elsewhere(token)) is None:
            if isinstance(held, Held):
                _check(held.matcher)
            return False
        if isinstance(following, Call):
            following = Held(following.grammar.deep_copy(), Free(following))
        self._go(token, following, None)
        return True

    def rollback(self, n: int) -> None:
        if n == 0:
            return
        gone = self.past[-n:]
        del self.past[-n:], self.tokens[-n:]
        self.place = gone[0][0]
        for matcher, run in groupby(matcher for _, matcher in reversed(gone)):
            if matcher is not None:
                matcher.rollback(sum(1 for _ in run))
                _check(matcher)

    def _go(self, token: int, following: Place, matcher: LLMatcher | None) -> None:
        self.past.append((self.place, matcher))
        self.tokens.append(token)
        self.place = following

    def _elsewhere(self, token: int) -> Place | None:
        """Where a token leads that no matcher takes; None if it may not come."""
        match self.place:
            case Free(call=call, thought=thought) as free:
                if (
                    thought is not None
                    and len(self.past) < len(thought.ids)
                    and (*self.tokens, token) == thought.ids
                ):
                    return thought.to
                return call if call is not None and self._ends_with(call.ids, token) else free
            case Thought(end=end, behind=behind) as inside:
                closed = self._ends_with(end, token)
                return (behind if closed else inside) if allows(self.bits(), token) else None
            case Marker() as marker:
                return _inside(marker, token)
            case Before(markers=markers):
                return next(
                    (place for each in markers if (place := _inside(each, token)) is not None), None
                )
        return None

    def _ends_with(self, ids: tuple[int, ...], token: int) -> bool:
        return (*self.tokens[-len(ids) :], token)[-len(ids) :] == ids


def _behind(held: Held) -> Place:
    """Where a token leads that the matcher has taken."""
    return held.then if held.then is not None and held.matcher.is_stopped() else held


def _mask(matcher: LLMatcher) -> bytes:
    bits = matcher.compute_bitmask()
    _check(matcher)
    return bits


def _check(matcher: LLMatcher) -> None:
    """Raises EngineError if the matcher has given up: a grammar may be too much for its limits at some place."""
    if matcher.is_error():
        raise EngineError("engine.grammar", detail=matcher.get_error())


def _inside(marker: Marker, token: int) -> Place | None:
    """Behind the first token of a marker."""
    if token != marker.ids[0]:
        return None
    return Marker(marker.ids[1:], marker.to) if marker.ids[1:] else marker.to
