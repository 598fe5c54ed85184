"""From the tokens of one choice to its events: detokenizer, stop strings, channels, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason, RequestStats, TokenLogprob
from omlx.text.channels import Channels, Piece
from omlx.text.detokenize import Detokenizer
from omlx.text.events import Finish, OutputEvent
from omlx.text.stops import StopCutter


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How the choices of one request are read. `context`: prompt tokens of a message that the output continues."""

    stop_ids: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    thinking: bool = False
    context: tuple[int, ...] = ()


class Output:
    def __init__(self, tokenizer: TokenizerWrapper, spec: OutputSpec) -> None:
        self._stop_ids = spec.stop_ids
        self._detokenizer = Detokenizer(tokenizer, spec.context)
        self._cutter = StopCutter(spec.stops)
        self._channels = Channels(think_markers(tokenizer), thinking=spec.thinking)
        self._logprobs: list[TokenLogprob] = []
        self._reasoning_n = 0

    def feed(self, tokens: Iterable[int], logprobs: Sequence[TokenLogprob] = ()) -> list[OutputEvent]:
        """Events of newly committed tokens. Stop ids have no text; `logprobs`, if any, are one a token."""
        self._logprobs += [entry for entry in logprobs if entry.token not in self._stop_ids]
        pieces: list[Piece] = []
        for token in tokens:
            if token in self._stop_ids:
                continue
            thinking = self._channels.thinking
            pieces += self._channels.feed(self._cutter.feed(self._detokenizer.feed(token)))
            self._reasoning_n += thinking or self._channels.thinking
        return self._joined(pieces)

    def finish(self, reason: FinishReason, stats: RequestStats) -> list[OutputEvent]:
        """What was held back, then the `Finish`. A stop string completed by the very last bytes counts."""
        pieces = self._channels.feed(self._cutter.feed(self._detokenizer.finish()))
        pieces += self._channels.feed(self._cutter.finish())
        pieces += self._channels.finish()
        events = self._joined(pieces)
        if self._cutter.matched is not None and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        return [*events, Finish(reason, stats, self._reasoning_n, self._take_logprobs())]

    def _joined(self, pieces: list[Piece]) -> list[OutputEvent]:
        """One delta for each run of pieces of one kind; the first of them carries the waiting logprobs."""
        joined: list[Piece] = []
        for piece in pieces:
            if joined and type(joined[-1]) is type(piece):
                joined[-1] = replace(joined[-1], text=joined[-1].text + piece.text)
            else:
                joined.append(piece)
        if joined and self._logprobs:
            joined[0] = replace(joined[0], logprobs=self._take_logprobs())
        return list(joined)

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        taken, self._logprobs = tuple(self._logprobs), []
        return taken


def think_markers(tokenizer: TokenizerWrapper) -> tuple[str, str] | None:
    return (tokenizer.think_start, tokenizer.think_end) if tokenizer.has_thinking else None
