"""Token masks of structured output, by llguidance matchers over a model's tokens.

Reasoning and a tool call may come before or instead of a constrained answer and are not constrained
themselves. If the answer is free but its calls are not, each call is constrained from opening
marker to end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Final, TypeAlias

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from omlx.engine.step.masking import allows, with_ids
from omlx.errors import BadRequest, EngineError
from omlx.text.calls.arguments import split_added
from omlx.text.calls.grammar import answer_text
from omlx.text.calls.markup import call_markup
from omlx.text.reasoning import channel_markers, reasoning_format
from omlx.text.tokens import Tokenizer

_LIMITS: Final = LLParserLimits(verbose_errors=False, initial_lexer_fuel=200_000)
"""Lexer fuel, a count of expressions — llguidance holds Python's lock while building a lexer: this
fuel takes less than 0.1 CPU seconds. A list of 20,000 words fits."""


class GrammarTokens:
    """Tokens of a model for grammars: llguidance's view of the tokenizer, and ids of markers."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = sorted(stop_ids)

    def matcher(self, source: str) -> LLMatcher:
        """Compile a source. Raises ValueError, also if the grammar allows no first token."""
        matcher = LLMatcher(self.known, source, log_level=0, limits=_LIMITS)
        ahead = matcher.deep_copy()
        ahead.consume_tokens(ahead.compute_ff_tokens())
        ahead.compute_bitmask()
        if ahead.is_error():
            complaint = ahead.get_error().removesuffix("<non-verbose/>").strip()
            if complaint == "NoExtensionBias":
                complaint = "nothing has this form"
            raise ValueError(complaint)
        return matcher

    @cached_property
    def thought_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Tokens that open and close reasoning.

        None for a model without reasoning, or whose markers are plain text.
        """
        channels = channel_markers(self._tokenizer)
        if channels is not None:
            return self._marker_ids(channels[0]), self._marker_ids(channels[1])
        form = reasoning_format(self._tokenizer)
        if form is None or not form.opens:
            return None
        if form.opens == self._tokenizer.think_start:
            tokenizer = self._tokenizer
            return tuple(tokenizer.think_start_tokens), tuple(tokenizer.think_end_tokens)
        if not any(token in form.closes for token in self.added):
            return None
        return self._marker_ids(form.opens), self._marker_ids(form.closes)

    @cached_property
    def thought_text(self) -> LLMatcher:
        """Matcher of reasoning whose closing marker is plain text, with the marker."""
        form = reasoning_format(self._tokenizer)
        assert form is not None
        closes = re.escape(form.closes).replace("/", r"\/")
        return self.matcher(f"start: thought\nthought[lazy]: /(?s:.*){closes}/")

    @cached_property
    def message_text(self) -> LLMatcher:
        """Matcher of a message text without markup, in a family whose calls are messages."""
        markup = call_markup(self._tokenizer, ())
        assert markup is not None
        assert markup.form.messages is not None
        return self.matcher(f"start: ANSWER?\n{answer_text(markup.form.messages)}")

    @cached_property
    def call_ids(self) -> tuple[int, ...]:
        markup = call_markup(self._tokenizer, ())
        assert markup is not None
        return self._marker_ids(markup.form.start)

    def _marker_ids(self, marker: str) -> tuple[int, ...]:
        ids: list[int] = []
        # llguidance alone finds added tokens only in the form of tags.
        for part in split_added(marker, self.added):
            known = self.added.get(part)
            ids += self.known.tokenize_str(part) if known is None else [known]
        return tuple(ids)

    @cached_property
    def added(self) -> Mapping[str, int]:
        """Added tokens of the tokenizer, which are no compositions of smaller tokens."""
        added: Mapping[str, int] = self._tokenizer._tokenizer.get_added_vocab()
        return added

    @cached_property
    def known(self) -> LLTokenizer:
        """View of the tokenizer for llguidance. Raises BadRequest for an unsupported tokenizer."""
        # Imports transformers, as the first tokenizer does: slow.
        from llguidance import hf  # noqa: PLC0415
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

        inner = self._tokenizer._tokenizer
        if not isinstance(inner, PreTrainedTokenizerFast):
            raise BadRequest("format.tokenizer")
        return hf.from_tokenizer(inner, eos_token=self._stop_ids or None)

    @cached_property
    def without_stops(self) -> bytes:
        mask = bytearray(b"\xff" * ((self.known.vocab_size + 7) // 8))
        for token in self._stop_ids:
            mask[token // 8] &= ~(1 << token % 8)
        return bytes(mask)


@dataclass(frozen=True, slots=True)
class CallStart:
    """State after the marker `ids` that opens a call: a copy of `grammar` constrains the call."""

    ids: tuple[int, ...]
    grammar: LLMatcher


@dataclass(frozen=True, slots=True)
class Free:
    """Unconstrained text, which may end."""

    call: CallStart | None = None  # starts a constrained call anywhere
    thought: Marker | None = None  # opens reasoning, only as the very first output


@dataclass(frozen=True, slots=True)
class Constrained:
    """Text that a matcher constrains. `then` follows its end; None: the output ends there."""

    matcher: LLMatcher
    then: State | None = None


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning up to the marker `end`, followed by `then`.

    The output may not end in reasoning if a constrained answer is due.
    """

    end: tuple[int, ...]
    then: State


@dataclass(frozen=True, slots=True)
class Marker:
    """Marker of which the tokens `ids` are still due, followed by `then`."""

    ids: tuple[int, ...]
    then: State

    def advance(self, token: int) -> State | None:
        """Return the state after a token; None if the token is not the marker's next."""
        if token != self.ids[0]:
            return None
        if len(self.ids) == 1:
            return self.then
        return Marker(self.ids[1:], self.then)


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """Start of a constrained answer, unless a marker comes instead."""

    answer: Constrained
    markers: tuple[Marker, ...] = ()


State: TypeAlias = Free | Constrained | Thought | Marker | AnswerStart | CallStart


@dataclass(slots=True, eq=False)
class GrammarMask:
    """Mask of a choice by grammars, an engine `TokenMask`."""

    state: State
    without_stops: bytes
    # Per token: the state before and the consuming matcher.
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
        """Consume a token; return False, changing nothing, for a disallowed token.

        Raises EngineError.
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
        """Return the state after a token that no matcher consumes; None for a disallowed token."""
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
        return len(self.tokens) < len(ids) and (*self.tokens, token) == ids

    def _ends_with(self, ids: tuple[int, ...], token: int) -> bool:
        return (*self.tokens[-len(ids) :], token)[-len(ids) :] == ids


def _bitmask(matcher: LLMatcher) -> bytes:
    bits = matcher.compute_bitmask()
    _check(matcher)
    return bits


def _check(matcher: LLMatcher) -> None:
    # A grammar may exceed its limits at some position.
    if matcher.is_error():
        raise EngineError("engine.grammar", detail=matcher.get_error())
