"""Output parser: from the tokens of a choice to its events.

Detokenizer, stop strings, reasoning, dropped markers and tool calls, each a stream parser with
`feed` and `finish`. Some models write a call without closing their reasoning first, and stop: such
a call counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeAlias

from omlx.engine.types import FinishReason, StopMatcher, TokenLogprob
from omlx.records import RequestStats
from omlx.text.calls import parser
from omlx.text.calls.markup import CallMarkup, call_markup
from omlx.text.calls.parser import ToolCallParser
from omlx.text.events import (
    Finish,
    HiddenLogprobs,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from omlx.text.filters import (
    MarkerFilter,
    ReasoningSplitter,
    Splitter,
    StopStringFilter,
    StopStringMatcher,
    StreamParser,
    WrapperFilter,
)
from omlx.text.reasoning import ReasoningFormat, reasoning_format, reasoning_splitter
from omlx.text.tokens import Detokenizer, Tokenizer

Piece: TypeAlias = parser.Piece | ReasoningDelta | HiddenLogprobs


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Settings of the parsers of a request's choices."""

    stop_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    thinking: bool = False  # the prompt has opened reasoning
    context: tuple[int, ...] = ()  # prompt tokens of a message that the output continues
    raw: bool = False  # text only, without reasoning and calls
    tools: tuple[Mapping[str, Any], ...] = ()  # in the form of chat templates
    strict: frozenset[str] = frozenset()  # functions whose arguments must follow their schema
    single: bool = False  # the output ends with its first call
    mark_drafted: bool = False  # texts are marked if drafted
    salt: str = ""  # seed of call ids


class OutputParser:
    """Parser of one choice: tokens become text, reasoning and calls."""

    def __init__(self, tokenizer: Tokenizer, spec: OutputSpec) -> None:
        self._stop_ids = spec.stop_ids
        self._single = spec.single
        self._mark_drafted = spec.mark_drafted
        self._detokenizer = Detokenizer(tokenizer, spec.context)
        self._stops = StopStringFilter(spec.stops)
        form, dropped = ReasoningFormat(), tuple[str, ...]()
        self._channels: Splitter = ReasoningSplitter(None)
        if not spec.raw:
            form = reasoning_format(tokenizer) or form
            self._channels = reasoning_splitter(tokenizer, spec.tools, thinking=spec.thinking)
            dropped = (*tokenizer.structural_markers, *form.dropped)
        self._markers = MarkerFilter(dropped)
        self._wrapper = WrapperFilter(form.answer)
        markup = None
        if spec.tools:
            markup = call_markup(tokenizer, spec.tools, spec.strict, spec.salt)
        self._calls = ToolCallParser(markup)
        once = form.opens and not form.repeats
        self._open = OpenReasoning(markup if once else None)
        self._logprobs: list[TokenLogprob] = []  # logprobs of tokens without a piece so far
        self._hidden = 0  # leading logprobs of tokens that will never have a piece
        self._reasoning_tokens = 0
        self._ended = False  # after the only call

    @property
    def stopped(self) -> bool:
        return self._stops.matched is not None

    def feed(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob] = (),
        drafted: Sequence[bool] = (),
    ) -> list[OutputEvent]:
        """Return the events of new tokens; stop tokens have no text.

        `logprobs` and `drafted`, if any, are one per token. A text of several tokens has the
        `drafted` of the last.
        """
        pieces: list[Piece] = []
        marks = drafted if self._mark_drafted else ()
        for token, logprob, mark in zip_longest(tokens, logprobs, marks):
            if token not in self._stop_ids:
                new = self._feed_token(token, logprob)
                pieces += _as_drafted(new) if mark else new
        return _merged(pieces)

    def finish(self, reason: FinishReason, stats: RequestStats) -> list[OutputEvent]:
        """Return the held events, then the `Finish`.

        A stop string completed by the very last bytes counts.
        """
        pieces: list[Piece] = []
        if not self._ended:
            pieces = self._attach_logprobs(self._rest(reason))
        calls = self._calls.count + self._open.count
        if self._ended:
            calls = 1
        stop = self._stops.matched
        if stop is not None and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        logprobs = tuple(self._logprobs)
        finish = Finish(reason, stats, self._reasoning_tokens, logprobs, stop, calls)
        return [*_merged(pieces), finish]

    def _feed_token(self, token: int, logprob: TokenLogprob | None) -> list[Piece]:
        if logprob is not None:
            self._logprobs.append(logprob)
        if self._ended:
            return []
        thinking = self._channels.thinking
        text = self._detokenizer.feed(token)
        pieces = self._parse(self._channels.feed(self._stops.feed(text)))
        self._reasoning_tokens += thinking or self._channels.thinking
        if text and not pieces and not self._holds:
            self._hidden = len(self._logprobs)
        return self._attach_logprobs(pieces)

    def _attach_logprobs(self, pieces: list[Piece]) -> list[Piece]:
        if not pieces or not self._logprobs:
            return pieces
        # Logprobs of markers before a text get an event of their own.
        hidden = self._hidden if isinstance(pieces[0], TextDelta) else 0
        logprobs = tuple(self._logprobs)
        self._logprobs, self._hidden = [], 0
        first = replace(pieces[0], logprobs=logprobs[hidden:])
        if hidden:
            return [HiddenLogprobs(logprobs[:hidden]), first, *pieces[1:]]
        return [first, *pieces[1:]]

    @property
    def _holds(self) -> bool:
        reasoning = (self._stops, self._channels, self._open)
        answer = (self._markers, self._wrapper, self._calls)
        return any(parser.holds for parser in (*reasoning, *answer))

    def _rest(self, reason: FinishReason) -> list[Piece]:
        text = self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
        pieces = self._parse(self._channels.feed(text))
        complete = reason is FinishReason.STOP and not self.stopped
        pieces += self._parse(self._channels.finish(complete=complete))
        if reason is FinishReason.STOP and self._channels.thinking:
            pieces += self._until_ended(self._open.finish())
        else:
            pieces += self._reasoning(self._open.close())
        answer = self._wrapper.feed(self._markers.finish()) + self._wrapper.finish()
        last = [*self._calls.feed(answer), *self._calls.finish(complete=complete)]
        return pieces + self._until_ended(last)

    def _parse(self, pieces: Iterable[TextDelta | ReasoningDelta]) -> list[Piece]:
        parsed: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, ReasoningDelta):
                parsed += self._reasoning(self._open.feed(piece.text))
            else:
                parsed += self._reasoning(self._open.close())
                parsed += self._calls.feed(self._wrapper.feed(self._markers.feed(piece.text)))
        return self._until_ended(parsed)

    def _reasoning(self, text: str) -> list[Piece]:
        return [ReasoningDelta(text)] if text else []

    def _until_ended(self, pieces: Sequence[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if self._ended:
                break
            kept.append(piece)
            self._ended = self._single and isinstance(piece, ToolCallEnd)
        return kept


class OutputStopMatcher:
    """Matcher of a stop string or the end of the only call, an engine `StopMatcher`.

    Parses the same output a second time.
    """

    def __init__(self, tokenizer: Tokenizer, spec: OutputSpec) -> None:
        self._parser = OutputParser(tokenizer, spec)
        self._single = spec.single

    def push(self, token: int) -> bool:
        events = self._parser.feed((token,))
        ended = self._single and any(isinstance(event, ToolCallEnd) for event in events)
        return ended or self._parser.stopped


def stop_matcher(tokenizer: Tokenizer, spec: OutputSpec) -> StopMatcher | None:
    """Return the matcher for ends in the text; None if only tokens end an output."""
    if spec.single:
        return OutputStopMatcher(tokenizer, spec)
    if spec.stops:
        return StopStringMatcher(tokenizer, spec.stops, spec.context)
    return None


def _as_drafted(pieces: Iterable[Piece]) -> list[Piece]:
    texts = (TextDelta, ReasoningDelta)
    return [replace(piece, drafted=True) if isinstance(piece, texts) else piece for piece in pieces]


def _merged(pieces: Iterable[Piece]) -> list[OutputEvent]:
    merged: list[Piece] = []
    for piece in pieces:
        if merged and (both := _merge(merged[-1], piece)) is not None:
            merged[-1] = both
        else:
            merged.append(piece)
    return list(merged)


def _merge(first: Piece, second: Piece) -> Piece | None:
    logprobs = first.logprobs + second.logprobs
    match first, second:
        case TextDelta(), TextDelta() if first.drafted == second.drafted:
            return replace(first, text=first.text + second.text, logprobs=logprobs)
        case ReasoningDelta(), ReasoningDelta() if first.drafted == second.drafted:
            return replace(first, text=first.text + second.text, logprobs=logprobs)
        case ToolCallArguments(), ToolCallArguments() if first.index == second.index:
            return replace(first, text=first.text + second.text, logprobs=logprobs)
    return None


class OpenReasoning(StreamParser):
    """Filter of reasoning; `count` is the number of calls inside. Without `markup` all passes."""

    def __init__(self, markup: CallMarkup | None) -> None:
        self.count = 0
        self._markup = markup
        self._probe = ToolCallParser(markup)
        self._call = False  # the held text begins with a call
        self._said = False  # reasoning was passed before the held text

    def feed(self, text: str) -> str:
        """Return the reasoning that certainly precedes any call."""
        if self._markup is None:
            return text
        self._held += text
        if self._call:
            return ""
        certain = 0
        for piece in self._probe.feed(text):
            if isinstance(piece, TextDelta):
                certain += len(piece.text)
            else:
                self._call = True
                break
        passed, self._held = self._held[:certain], self._held[certain:]
        self._said = self._said or bool(passed)
        return passed

    def close(self) -> str:
        """Return the held text as reasoning, which the model has closed. All further text
        passes."""
        self._markup = None
        held, self._held = self._held, ""
        return held

    def finish(self) -> list[parser.Piece | ReasoningDelta]:
        """Parse the held text at the end of the output: complete calls, and reasoning around them.

        Calls of functions with enforced arguments are no calls here: the grammar did not apply in
        reasoning.
        """
        markup, held = self._markup, self.close()
        reader = ToolCallParser(markup)
        pieces: list[parser.Piece] = []
        if self._call and markup is not None:
            pieces = [*reader.feed(held.lstrip()), *reader.finish(complete=True)]
            if not all(_counts(piece, markup) for piece in pieces):
                pieces = []
        if not pieces:
            return [ReasoningDelta(held)] if held else []
        self.count = reader.count
        gap = "\n" if self._said else ""
        rest: list[parser.Piece | ReasoningDelta] = []
        for piece in pieces:
            if isinstance(piece, TextDelta):
                rest.append(ReasoningDelta(gap + piece.text))
                gap = ""
            else:
                rest.append(piece)
        return rest


def _counts(piece: parser.Piece, markup: CallMarkup) -> bool:
    match piece:
        case ToolCallStart(name=name):
            return name not in markup.enforced
        case ToolCallEnd(complete=complete):
            return complete
    return True
