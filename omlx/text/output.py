"""From the tokens of one choice to its events: detokenizer, stop strings, channels, markers to drop, calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.records import RequestStats
from omlx.text import harmony, tool_call_parser
from omlx.text.call_markup import call_markup
from omlx.text.channels import HEADER, ChannelSplitter, ReasoningSplitter
from omlx.text.detokenize import Detokenizer
from omlx.text.events import (
    Finish,
    HiddenLogprobs,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
)
from omlx.text.stop_strings import MarkerFilter, StopStringFilter
from omlx.text.tool_call_parser import ToolCallParser

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Piece: TypeAlias = tool_call_parser.Piece | ReasoningDelta | HiddenLogprobs


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How the choices of one request are read.

    `context`: prompt tokens of a message that the output continues. `raw`: the text is all there is, no reasoning and
    no calls. `tools` are the functions that may be called, as templates know them; `opening` is the beginning of the
    answer that stands in the prompt already; `single`: the output ends with its first call.
    """

    stop_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    thinking: bool = False
    context: tuple[int, ...] = ()
    raw: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    opening: str = ""
    single: bool = False


class OutputParser:
    def __init__(self, tokenizer: TokenizerWrapper, spec: OutputSpec) -> None:
        self._stop_ids = spec.stop_ids
        self._detokenizer = Detokenizer(tokenizer, spec.context)
        self._cutter = StopStringFilter(spec.stops)
        self._channels = _channels(tokenizer, spec)
        self._dropper = MarkerFilter(() if spec.raw else tokenizer.structural_markers)
        self._calls = ToolCallParser(call_markup(tokenizer, spec.tools) if spec.tools else None)
        self._logprobs: list[TokenLogprob] = []  # of tokens that no piece has come of yet
        self._unsaid_n = 0  # how many of these none will come of
        self._reasoning_tokens = 0
        self._single, self._over = spec.single, False
        self._waiting = self._read(spec.opening)

    def feed(
        self, tokens: Iterable[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> list[OutputEvent]:
        """Events of newly committed tokens. Stop ids have no text; `logprobs`, if any, are one a token."""
        pieces, self._waiting = self._waiting, []
        for token, logprob in zip_longest(tokens, logprobs):
            if token not in self._stop_ids:
                pieces += self._of_token(token, logprob)
        return _joined(pieces)

    def finish(self, reason: FinishReason, stats: RequestStats) -> list[OutputEvent]:
        """What was held back, then the `Finish`. A stop string completed by the very last bytes counts."""
        events = _joined(
            self._waiting if self._over else self._waiting + self._with_logprobs(self._rest())
        )
        stop = self._cutter.matched
        if stop is not None and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        calls_n = 1 if self._over else self._calls.count
        return [
            *events,
            Finish(reason, stats, self._reasoning_tokens, tuple(self._logprobs), stop, calls_n),
        ]

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._cutter.matched is not None

    def _of_token(self, token: int, logprob: TokenLogprob | None) -> list[Piece]:
        if logprob is not None:
            self._logprobs.append(logprob)
        if self._over:
            return []
        thinking = self._channels.thinking
        text = self._detokenizer.feed(token)
        pieces = self._read(self._cutter.feed(text))
        self._reasoning_tokens += thinking or self._channels.thinking
        machines = (self._cutter, self._channels, self._dropper, self._calls)
        if text and not pieces and not any(machine.holds for machine in machines):
            self._unsaid_n = len(self._logprobs)
        return self._with_logprobs(pieces)

    def _with_logprobs(self, pieces: list[Piece]) -> list[Piece]:
        """The first piece carries what has waited. Markers before a text are none of it; before a call they are."""
        if not pieces or not self._logprobs:
            return pieces
        waited, unsaid_n = (
            tuple(self._logprobs),
            self._unsaid_n if isinstance(pieces[0], TextDelta) else 0,
        )
        self._logprobs, self._unsaid_n = [], 0
        unsaid = [HiddenLogprobs(waited[:unsaid_n])] if unsaid_n else []
        return [*unsaid, replace(pieces[0], logprobs=waited[unsaid_n:]), *pieces[1:]]

    def _rest(self) -> list[Piece]:
        """What every machine on the way still holds."""
        pieces = self._read(self._cutter.feed(self._detokenizer.finish()))
        pieces += self._read(self._cutter.finish())
        pieces += self._called(self._channels.finish())
        return pieces + self._until_over(
            [*self._calls.feed(self._dropper.finish()), *self._calls.finish()]
        )

    def _read(self, text: str) -> list[Piece]:
        return self._called(self._channels.feed(text))

    def _called(self, pieces: Iterable[TextDelta | ReasoningDelta]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, ReasoningDelta):
                found.append(piece)
            else:
                found += self._calls.feed(self._dropper.feed(piece.text))
        return self._until_over(found)

    def _until_over(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Where there may be one call, nothing comes behind it."""
        kept: list[Piece] = []
        for piece in pieces if not self._over else ():
            kept.append(piece)
            self._over = self._single and isinstance(piece, ToolCallEnd)
            if self._over:
                break
        return kept


class OutputStopMatcher:
    """The engine's `StopMatcher` for what text alone can tell: a stop string is complete, or the only call has ended.

    It reads the output as the other side of the engine does, so that both agree.
    """

    def __init__(self, tokenizer: TokenizerWrapper, spec: OutputSpec) -> None:
        self._output = OutputParser(tokenizer, spec)
        self._single = spec.single

    def push(self, token: int) -> bool:
        events = self._output.feed((token,))
        return self._output.stopped or (
            self._single and any(isinstance(event, ToolCallEnd) for event in events)
        )


def _channels(tokenizer: TokenizerWrapper, spec: OutputSpec) -> ReasoningSplitter | ChannelSplitter:
    if spec.raw:
        return ReasoningSplitter(None)
    if tokenizer.response_initial_state is not None:
        return ChannelSplitter(tokenizer.response_initial_state, tokenizer.response_transitions)
    if harmony.uses_harmony(tokenizer):
        return ChannelSplitter(HEADER, harmony.TRANSITIONS)
    markers = (tokenizer.think_start, tokenizer.think_end) if tokenizer.has_thinking else None
    return ReasoningSplitter(markers, thinking=spec.thinking)


def _joined(pieces: Iterable[Piece]) -> list[OutputEvent]:
    """One delta for each run of pieces of one kind."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and (both := _together(joined[-1], piece)) is not None:
            joined[-1] = both
        else:
            joined.append(piece)
    return list(joined)


def _together(one: Piece, other: Piece) -> Piece | None:
    """Two neighbours as one piece, where they are of one kind."""
    logprobs = one.logprobs + other.logprobs
    match one, other:
        case TextDelta(), TextDelta():
            return replace(one, text=one.text + other.text, logprobs=logprobs)
        case ReasoningDelta(), ReasoningDelta():
            return replace(one, text=one.text + other.text, logprobs=logprobs)
        case ToolCallArguments(), ToolCallArguments() if one.index == other.index:
            return replace(one, text=one.text + other.text, logprobs=logprobs)
    return None
