"""Token masks of structured output: which tokens may follow at every position of an answer.

Reasoning and a tool call may come before or instead of a constrained answer and are not constrained
themselves. Where the answer is free but its calls are not, each call is constrained from its
opening marker to its end. Constrained parts follow llguidance matchers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from llguidance import LLMatcher

from omlx.engine.masking import allows, with_ids
from omlx.errors import EngineError


@dataclass(frozen=True, slots=True)
class CallStart:
    """State after the marker `ids` that opens a call: a copy of `grammar` constrains the call."""

    ids: tuple[int, ...]
    grammar: LLMatcher


@dataclass(frozen=True, slots=True)
class Free:
    """Unconstrained text, which may end. The marker of `call` starts a constrained call wherever it
    occurs.

    The marker of `thought` opens reasoning, and only as the very first output.
    """

    call: CallStart | None = None
    thought: Marker | None = None


@dataclass(frozen=True, slots=True)
class Constrained:
    """Text that a matcher constrains. `then` follows its end; None: the output ends there."""

    matcher: LLMatcher
    then: State | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning up to the marker `end`, followed by `then`. The output may not end in it if a
    constrained answer is due.
    """

    end: tuple[int, ...]
    then: State


@dataclass(frozen=True, slots=True)
class Marker:
    """The remaining tokens of a marker, and the state after it."""

    ids: tuple[int, ...]
    then: State

    def advance(self, token: int) -> State | None:
        """Return the state after a token; None if the token is not the next one of the marker."""
        if token != self.ids[0]:
            return None
        if len(self.ids) == 1:
            return self.then
        return Marker(self.ids[1:], self.then)


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """Start of a constrained answer, unless one of the markers comes instead."""

    answer: Constrained
    markers: tuple[Marker, ...] = ()


State: TypeAlias = Free | Constrained | Thought | Marker | AnswerStart | CallStart


@dataclass(slots=True, eq=False)
class GrammarMask:
    """The engine's `TokenMask`. `history` holds, per token, the state before it and the matcher
    that consumed it.
    """

    state: State
    without_stops: bytes
    history: list[tuple[State, LLMatcher | None]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        state = self.state
        return isinstance(state, Constrained) and state.then is None and state.matcher.is_stopped()

    @property
    def free(self) -> int:
        return 0

    def bits(self) -> bytes | None:
        """Return the bitmask of allowed tokens; None allows all."""
        match self.state:
            case Constrained(matcher=matcher):
                return _bitmask(matcher)
            case Thought(then=Free()):
                return None
            case Thought():
                return self.without_stops
            case Marker(ids=ids):
                return with_ids(bytes(len(self.without_stops)), ids[:1])
            case AnswerStart(answer=answer, markers=markers):
                return with_ids(_bitmask(answer.matcher), (marker.ids[0] for marker in markers))
        return None

    def advance(self, token: int) -> bool:
        """Consume a token; return False, changing nothing, if it is not allowed. Raises
        EngineError.
        """
        state = self.state
        if isinstance(state, AnswerStart):
            state = state.answer
        if isinstance(state, Constrained) and state.matcher.try_consume_tokens([token]) == 1:
            _check(state.matcher)
            ended = state.then is not None and state.matcher.is_stopped()
            self._enter(token, (ended and state.then) or state, state.matcher)
            return True
        following = self._unconstrained(token)
        if following is None:
            if isinstance(state, Constrained):
                _check(state.matcher)
            return False
        if isinstance(following, CallStart):
            following = Constrained(following.grammar.deep_copy(), Free(following))
        self._enter(token, following, None)
        return True

    def rollback(self, n: int) -> None:
        """Undo the last `n` tokens. Raises EngineError."""
        if n == 0:
            return
        undone = self.history[-n:]
        del self.history[-n:], self.tokens[-n:]
        self.state, _ = undone[0]
        matchers = [matcher for _, matcher in reversed(undone)]
        for matcher, run in groupby(matchers):
            if matcher is not None:
                matcher.rollback(len(list(run)))
                _check(matcher)

    def _enter(self, token: int, following: State, matcher: LLMatcher | None) -> None:
        self.history.append((self.state, matcher))
        self.tokens.append(token)
        self.state = following

    def _unconstrained(self, token: int) -> State | None:
        """Return the state after a token that no matcher consumes; None if it is not allowed."""
        match self.state:
            case Free(call=call, thought=thought) as free:
                if thought is not None and self._opens(thought.ids, token):
                    return thought.then
                if call is not None and self._ends_with(call.ids, token):
                    return call
                return free
            case Thought(end=end, then=then) as thinking:
                if not allows(self.bits(), token):
                    return None
                if self._ends_with(end, token):
                    return then
                return thinking
            case Marker() as marker:
                return marker.advance(token)
            case AnswerStart(markers=markers):
                states = (marker.advance(token) for marker in markers)
                return next((state for state in states if state is not None), None)
        return None

    def _opens(self, ids: tuple[int, ...], token: int) -> bool:
        """Return whether the whole output so far is this marker."""
        return len(self.tokens) < len(ids) and (*self.tokens, token) == ids

    def _ends_with(self, ids: tuple[int, ...], token: int) -> bool:
        return (*self.tokens[-len(ids) :], token)[-len(ids) :] == ids


def _bitmask(matcher: LLMatcher) -> bytes:
    bits = matcher.compute_bitmask()
    _check(matcher)
    return bits


def _check(matcher: LLMatcher) -> None:
    """Raise EngineError if the matcher has failed: a grammar may exceed its limits at some
    position.
    """
    if matcher.is_error():
        raise EngineError("engine.grammar", detail=matcher.get_error())
