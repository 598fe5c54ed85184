"""Compactions: requests by which programs summarise a conversation that fills the context.

A program asks with the conversation and a fixed message behind, perhaps with other instructions or
without tools. That shape is learnt from the last one seen, so the next one can be computed ahead.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from omlx.server.request.generation_request import GenerationRequest
from omlx.text.template.render import texts_of
from omlx.text.tools import ToolUse

SHARE: Final = 0.8
"""Share of the context that a conversation fills before a compaction is prepared."""

CONVERSATIONS: Final = 4
"""Last requests of a program among which the compacted conversation is found."""

MAX_PROGRAMS: Final = 16

_ASKS: Final = re.compile(
    r"Your task is to create a detailed summary of (?:the|this|our) conversation"
    r"|REMINDER: Do NOT call any tools\. Respond with plain text only"  # Claude Code
    r"|You are performing a CONTEXT CHECKPOINT COMPACTION"  # Codex
    r"|Do not mention the summary process or that context was compacted"  # opencode
    r"|Provide a detailed prompt for continuing our conversation above"
    r"|The messages above are a conversation to summarize"  # pi
    r"|First, reason in your (?:private )?<?scratchpad"  # Qwen Code
)
"""Sentences of the messages with which known programs ask."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Differences of a compaction from the compacted conversation.

    `system` replaces the system messages, None: the same ones. `tools` as offered, or none.
    `asks` are the messages behind the conversation.
    """

    system: Sequence[Mapping[str, Any]] | None
    tools: ToolUse | None
    same_tools: bool
    asks: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the compaction of a conversation, which ends as `request` does."""
        system, rest = split(request.messages)
        if self.system is not None:
            system = self.system
        tools = request.tools if self.same_tools else self.tools
        messages = (*system, *rest, *self.asks)
        return replace(request, messages=messages, tools=tools, template_variables=self.variables)


@dataclass(slots=True)
class Compactions:
    """Shapes by model and program, and the last conversations to learn them from."""

    _shapes: dict[tuple[str, str], Shape] = field(default_factory=dict)
    _last: dict[tuple[str, str], deque[GenerationRequest]] = field(default_factory=dict)

    def note(self, model: str, program: str, request: GenerationRequest) -> None:
        """Learn from a request: a conversation, or the compaction of an earlier one."""
        name = model, program
        if asks_to_compact(request):
            for conversation in reversed(self._last.get(name, ())):
                if (shape := shape_of(conversation, request)) is not None:
                    self._shapes[name] = shape
                    return
        elif request.tools is not None:
            last = self._last.pop(name, None) or deque(maxlen=CONVERSATIONS)
            last.append(request)
            self._last[name] = last  # the newest program is the last
            if len(self._last) > MAX_PROGRAMS:
                oldest = next(iter(self._last))
                self._last.pop(oldest)
                self._shapes.pop(oldest, None)

    def shape(self, model: str, program: str) -> Shape | None:
        return self._shapes.get((model, program))


def asks_to_compact(request: GenerationRequest) -> bool:
    """Whether the last message is one with which a known program asks to compact."""
    if not request.messages or request.messages[-1]["role"] != "user":
        return False
    return any(_ASKS.search(text) for text in texts_of(request.messages[-1].get("content")))


def shape_of(conversation: GenerationRequest, compaction: GenerationRequest) -> Shape | None:
    """Return the shape of a compaction; None for another conversation.

    An answer and results of tools may stand between the two.
    """
    system, rest = split(conversation.messages)
    own, messages = split(compaction.messages)
    if list(messages[: len(rest)]) != list(rest) or len(messages) == len(rest):
        return None
    return Shape(
        system=None if list(own) == list(system) else own,
        tools=compaction.tools,
        same_tools=compaction.tools == conversation.tools,
        asks=messages[-1:],
        variables=compaction.template_variables,
    )


def split(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Split messages into the leading system messages and the others."""
    at = next((i for i, one in enumerate(messages) if one["role"] != "system"), len(messages))
    return messages[:at], messages[at:]
