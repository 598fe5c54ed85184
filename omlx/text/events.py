"""The neutral event stream of one choice: what every API dialect encodes and no dialect defines.

    text, reasoning      deltas, in any number and order
    a tool call          start, arguments (JSON text to append), end; one call at a time, numbered from 0
    the end              exactly one `Finish`, last
    the prompt           its logprobs, before all else, where they were asked for

Deltas of one kind may be joined or split without changing their meaning. `logprobs` on an event belong to the tokens
that it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.records import RequestStats


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call number `index` of this choice begins. `id` is never used twice."""

    index: int
    id: str
    name: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """`text` is the next piece of the arguments as JSON. Unless it was cut off, the pieces of a call are one object."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """`whole`: not cut off inside of its arguments."""

    index: int
    logprobs: tuple[TokenLogprob, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class HiddenLogprobs:
    """Logprobs of tokens that are in none of the others: markers, and what is dropped around them."""

    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a choice. `reasoning_tokens` of the `stats.predicted_n` tokens were reasoning; `stop` is the stop string
    that ended it, if one did; `calls` counts its tool calls."""

    reason: FinishReason
    stats: RequestStats
    reasoning_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of the next tokens of the prompt; they begin with its second one."""

    logprobs: tuple[TokenLogprob, ...]


Delta: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | HiddenLogprobs
)
OutputEvent: TypeAlias = Delta | PromptLogprobs | Finish
