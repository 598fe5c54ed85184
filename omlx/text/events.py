"""Neutral event stream of a choice: encoded by every API dialect, defined by none.

    text, reasoning      deltas, in any number and order
    a tool call          start, arguments (JSON text to append), end; calls are numbered from 0
    the end              exactly one `Finish`, last
    the prompt           its requested logprobs, first
    tools run here       the lists of tools first; a result behind the end of its call

Deltas of one kind may be merged or split without changing their meaning. `logprobs` belong to the
event's tokens. `drafted`: the text came from accepted draft tokens, if requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.records import Receipt, RequestStats
from omlx.tools.tool import Tool, ToolResult


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    drafted: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    drafted: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Start of call number `index` of this choice. `id` is unique."""

    index: int
    id: str
    name: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """Next piece of the arguments. The pieces of a complete call are a JSON object."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """End of a tool call. `complete`: the arguments were not cut off."""

    index: int
    logprobs: tuple[TokenLogprob, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class HiddenLogprobs:
    """Logprobs of tokens without text: markers and dropped white space."""

    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End of a choice."""

    reason: FinishReason
    stats: RequestStats
    reasoning_tokens: int = 0  # of `stats.predicted_n`
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None  # stop string that ended the choice
    tool_calls: int = 0  # number of calls
    receipt: Receipt | None = None  # if requested


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Next logprobs of the prompt's tokens, from the second token on."""

    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """Tools of a server, listed before the answer."""

    server: str
    tools: tuple[Tool, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """Result of a server tool's call, behind the end of the call."""

    index: int
    id: str
    result: ToolResult
    logprobs: tuple[TokenLogprob, ...] = ()


Delta: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | HiddenLogprobs
)
OutputEvent: TypeAlias = Delta | PromptLogprobs | Finish | ToolsListed | ToolReturned
