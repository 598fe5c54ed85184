"""Priority of a request: by fields, else guessed from client and shape. Pure.

Titles, recaps, suggestions and sub-agents, for which no user waits, are in the background: their
requests give way to others. The guess is shown with the request; the field `priority`, or a
`service_tier` other than `auto`, overrides a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.server.request.generation_request import GenerationRequest
from omlx.text.template.render import texts_of

BACKGROUND: Final = 10
URGENT: Final = -10
TIERS: Final[dict[str, int | None]] = {
    "auto": None,
    "default": 0,
    "standard": 0,
    "standard_only": 0,
    "scale": 0,
    "flex": BACKGROUND,
    "priority": URGENT,
}
"""Priorities by OpenAI's and Anthropic's `service_tier`. None: as guessed."""

NOT_WAITED_FOR: Final = frozenset({"review", "compact"})
"""Sub-agents of Codex whose answer the user waits for."""

SUBAGENT: Final = "priority.guess.subagent"
SUGGESTION: Final = "priority.guess.suggestion"
TITLE: Final = "priority.guess.title"
RECAP: Final = "priority.guess.recap"

_HEAD: Final = 1_500
"""Characters of a text in which a program states the task."""

_MAKE: Final = r"\b(?:generat|creat|writ|provid|suggest|summari[sz])\w*\b"
_SYSTEM: Final = (
    (SUBAGENT, re.compile(r"You are (?:an agent|an? [\w, ]{4,60} specialist) for Claude Code")),
    (SUBAGENT, re.compile(r"^You are a file search specialist\b")),
    (TITLE, re.compile(r"\btitle generator\b", re.IGNORECASE)),
    (TITLE, re.compile(_MAKE + r"[^.\n]{0,80}\btitle\b", re.IGNORECASE)),
)
_USER: Final = (
    (SUGGESTION, re.compile(r"^\[SUGGESTION MODE\b")),
    (SUGGESTION, re.compile(r"^### Task:\s+You are an autocompletion system")),
    (
        TITLE,
        re.compile(r"^### Task:\s+(?:Generate|Suggest)\b.{0,80}\b(?:title|tags|questions)"),
    ),
    (
        TITLE,
        re.compile(
            _MAKE + r"[^\n]{0,100}\btitle\b[^\n]{0,60}\b(?:conversation|chat|thread|session)\b",
            re.IGNORECASE,
        ),
    ),
    (RECAP, re.compile(r"\bstepped away and is coming back\b")),
)
"""Kinds of requests by the beginnings of system messages and of last user messages."""

_WITH_TOOLS: Final = frozenset({SUBAGENT, SUGGESTION, RECAP})
"""Kinds whose requests may have tools; a title has none."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The engine's number, lower is sooner, and the reason of a guess."""

    value: int = 0
    guess: Reason | None = None


def priority_of(request: GenerationRequest, subagent: str = "") -> Priority:
    """Return the priority of a request; `subagent` names the sender by header."""
    if request.priority is not None:
        return Priority(request.priority)
    kind = guess(request, subagent)
    if kind is None:
        return Priority()
    return Priority(BACKGROUND, Reason(kind))


def guess(request: GenerationRequest, subagent: str = "") -> str | None:
    """Return the kind of a background request as a code, or None."""
    if subagent and subagent not in NOT_WAITED_FOR:
        return SUBAGENT
    if not request.messages:
        return None
    system = [message for message in request.messages if message["role"] == "system"]
    texts = "\n".join(text for message in system for text in texts_of(message.get("content")))
    last = request.messages[-1]
    asked = "\n".join(texts_of(last.get("content"))) if last["role"] == "user" else ""
    for patterns, text in ((_SYSTEM, texts.lstrip()[:_HEAD]), (_USER, asked.lstrip()[:_HEAD])):
        for kind, pattern in patterns:
            if (kind in _WITH_TOOLS or request.tools is None) and pattern.search(text):
                return kind
    return None
