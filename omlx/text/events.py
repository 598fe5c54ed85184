"""The neutral event stream of one choice: what every API dialect encodes and no dialect defines.

The order is any number of deltas, then exactly one `Finish`. Deltas of one kind may be joined or split without
changing their meaning. `logprobs` on an event belong to the tokens committed since the event before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from omlx.engine.types import FinishReason, RequestStats, TokenLogprob


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of call number `index`; `id` and `name` come with its first piece, `arguments` is JSON text to append."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a choice. `reasoning_n` of the `stats.predicted_n` tokens were reasoning."""

    reason: FinishReason
    stats: RequestStats
    reasoning_n: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta
OutputEvent: TypeAlias = Delta | Finish
