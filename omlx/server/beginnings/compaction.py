"""Compactions: requests by which programs summarise a conversation that fills the context.

A program asks with the conversation and a fixed message behind, perhaps with other instructions or
without tools; pi with a transcript. That shape is learnt from the last one seen and kept for the
next processes, so the next compaction can be computed ahead.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

from omlx import storage
from omlx.server.beginnings import transcript
from omlx.server.beginnings.beginning import MAX_AGE_S
from omlx.server.request.generation_request import GenerationRequest
from omlx.storage import Failure, Measurements
from omlx.text.template.render import Message, texts_of
from omlx.text.tools import ToolUse

SHARE: Final = 0.8
"""Share of the context that a conversation fills before a compaction is prepared."""

LEAST_SHARE: Final = 0.5
"""Share of the context — below it none is prepared, whenever the program has compacted."""

EARLY: Final = 0.8
"""Share of the last compaction's size, from which on the next one is prepared."""

CONVERSATIONS: Final = 4
"""Last requests of a program among which the compacted conversation is found."""

MAX_PROGRAMS: Final = 16

KIND: Final = "compactions"
"""Kind of the records, by model."""

_ASKS: Final = re.compile(
    r"Your task is to create a detailed summary of (?:the|this|our) conversation"
    r"|REMINDER: Do NOT call any tools\. Respond with plain text only"  # Claude Code
    r"|You are performing a CONTEXT CHECKPOINT COMPACTION"  # Codex
    r"|Do not mention the summary process or that context was compacted"  # opencode
    r"|Provide a detailed prompt for continuing our conversation above"
    r"|First, reason in your (?:private )?<?scratchpad"  # Qwen Code
    rf"|{'|'.join(transcript.ASKS.values())}"  # pi
)
"""Sentences of the messages with which known programs ask."""

log = logging.getLogger("omlx.prefix")


@dataclass(frozen=True, slots=True)
class Shape:
    """Differences of a compaction from the compacted conversation.

    `system` replaces the system messages; None: the same ones. `tools` replaces the tools unless
    `same_tools`.
    `asks` are the messages behind the conversation, or, for a `transcript`, the text behind it.
    `filled`: share of the context that the conversation filled, 0 if unknown. `kept`: tokens at the
    end of the conversation that are not in a transcript. `seen_at`: seconds since the epoch.
    """

    system: Sequence[Mapping[str, Any]] | None
    tools: ToolUse | None
    same_tools: bool
    asks: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    transcript: bool = False
    filled: float = 0.0
    kept: int = 0
    seen_at: float = field(default=0.0, compare=False)

    @property
    def kind(self) -> str:
        """Name among the shapes of a program; empty for the only one."""
        return transcript.kind_of(self.asks[0]["content"]) or "" if self.transcript else ""

    @property
    def prepared_from(self) -> float:
        """Share of the context from which on the compaction is prepared."""
        return min(SHARE, max(LEAST_SHARE, EARLY * self.filled)) if self.filled else SHARE

    def of(self, request: GenerationRequest) -> GenerationRequest | None:
        """Return the compaction of a conversation that ends as `request` does.

        None if the program would not make it.
        """
        system, rest = split(request.messages)
        if self.system is not None:
            system = self.system
        tools = request.tools if self.same_tools else self.tools
        messages = (*system, *rest, *self.asks)
        if self.transcript:
            text = transcript.compaction_text(self.asks[0]["content"], self.kept, rest)
            if text is None:
                return None
            messages = (*system, {**self.asks[0], "content": text})
        return replace(request, messages=messages, tools=tools, template_variables=self.variables)

    def to_json(self) -> dict[str, Any]:
        record = {one.name: getattr(self, one.name) for one in fields(self)}
        return record | {"tools": None if self.tools is None else self.tools.functions}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Shape:
        """Raises KeyError, TypeError or ValueError for other records."""
        tools = None if record["tools"] is None else ToolUse(tuple(record["tools"]))
        seen_at = float(record.get("seen_at", 0.0))
        return cls(**{**record, "tools": tools, "seen_at": seen_at})


Programs: TypeAlias = dict[str, dict[str, Shape]]
"""Shapes by program and kind, the newest program last."""


@dataclass(slots=True)
class Conversation:
    """A request and its answer, and the share of the context that they have filled."""

    request: GenerationRequest
    answer: Message | None = None
    filled: float = 0.0


@dataclass(slots=True)
class Compactions:
    """Shapes by model and program, and the last conversations to learn them from.

    `home` keeps shapes in its records; None: nothing is kept. `wall` returns the time of day in
    seconds. Thread-safe.
    """

    home: Path | None = None
    wall: Callable[[], float] = time.time
    _shapes: dict[str, Programs] = field(default_factory=dict)
    _last: dict[tuple[str, str], deque[Conversation]] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)
    """Models whose records are in `_shapes`, or were deleted."""
    _forgets: int = 0
    """Count of calls of `forget`: what was begun before one must not be added after it."""
    _lock: Lock = field(default_factory=Lock)

    def note(self, model: str, program: str, request: GenerationRequest) -> Conversation:
        """Note a request that is no compaction as the newest of a conversation."""
        conversation = Conversation(request)
        if request.tools is not None:
            with self._lock:
                last = self._last.pop((model, program), None) or deque(maxlen=CONVERSATIONS)
                last.append(conversation)
                self._last[model, program] = last  # the newest program is the last
                if len(self._last) > MAX_PROGRAMS:
                    self._last.pop(next(iter(self._last)))
        return conversation

    def learn(self, model: str, program: str, request: GenerationRequest) -> bool:
        """Learn from a compaction of an earlier conversation. Return whether it is of one.

        Takes long for long conversations: in a thread.
        """
        with self._lock:
            last, forgets = [*self._last.get((model, program), ())], self._forgets
        for conversation in reversed(last):
            shape = shape_of(conversation, request)
            if shape is not None:
                shape = replace(shape, seen_at=self.wall())
                return self._add(model, {program: {shape.kind: shape}}, forgets)
        return False

    async def shapes(self, model: str, program: str) -> list[Shape]:
        """Return the shapes of a program."""
        if model not in self._read:
            forgets = self._forgets
            self._add(model, await asyncio.to_thread(self._stored, model), forgets)
            self._read.add(model)  # unless cancelled before
        with self._lock:
            return list(self._shapes.get(model, {}).get(program, {}).values())

    def save(self, model: str) -> None:
        """Add the shapes of a model to the records. A failure is a warning in the log."""

        def change(text: str | None) -> str:
            with self._lock:  # in the transaction, which that of a later `forget` follows
                learnt = self._shapes.get(model, {})
            return _text(self._newest(_parsed(text), learnt))

        try:
            if self.home is not None:
                Measurements(self.home, KIND).change(model, change)
        except (*Failure, TypeError, ValueError) as error:
            _warn("compactions of conversations not written", error)

    def drop_old(self) -> None:
        """Delete the shapes beyond the limit of age from the records of all models."""

        def change(db: sqlite3.Connection) -> None:
            query = "select name, content from measurements where kind = ?"
            for name, text in db.execute(query, (KIND,)).fetchall():
                if (kept := _text(self._newest(_parsed(text)))) != text:
                    update = "update measurements set content = ? where (kind, name) = (?, ?)"
                    db.execute(update, (kept, KIND, name))

        try:
            if self.home is not None:
                storage.use(self.home, change, create=False)
        except FileNotFoundError:
            pass
        except Failure as error:
            _warn("compactions of conversations not written", error)

    def forget(self, model: str) -> None:
        """Drop the shapes of a model and its last conversations, in memory."""
        with self._lock:
            self._forgets += 1
            self._read.add(model)
            self._shapes.pop(model, None)
            self._last = {name: last for name, last in self._last.items() if name[0] != model}

    def _add(self, model: str, programs: Programs, forgets: int) -> bool:
        """Add shapes, unless something was forgotten since the count was `forgets`."""
        with self._lock:
            if forgets == self._forgets:
                self._shapes[model] = self._newest(self._shapes.get(model, {}), programs)
            return forgets == self._forgets

    def _newest(self, *sources: Programs) -> Programs:
        """Return the newest shape of each program and kind, within the limits of age and number."""
        shapes = [
            (program, shape)
            for programs in sources
            for program, kinds in programs.items()
            for shape in kinds.values()
        ]
        newest, oldest = Programs(), self.wall() - MAX_AGE_S
        for program, shape in sorted(shapes, key=lambda one: one[1].seen_at):
            if shape.seen_at >= oldest:
                newest[program] = newest.pop(program, {}) | {shape.kind: shape}
        return dict([*newest.items()][-MAX_PROGRAMS:])

    def _stored(self, model: str) -> Programs:
        try:
            text = None if self.home is None else Measurements(self.home, KIND).load(model)
        except Failure as error:
            _warn("compactions of conversations not read", error)
            text = None
        return _parsed(text)


def _text(programs: Programs) -> str:
    """Return a record of shapes."""
    records = {
        program: [shape.to_json() for shape in shapes.values()]
        for program, shapes in programs.items()
    }
    return json.dumps(records)


def _parsed(text: str | None) -> Programs:
    """Return the shapes of a record; none of a damaged one."""
    programs: Programs = {}
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        for program, records in json.loads(text or "{}").items():
            shapes = [Shape.from_json(record) for record in records]
            programs[program] = {shape.kind: shape for shape in shapes}
    return programs


def _warn(event: str, error: Exception) -> None:
    log.warning(event, extra={"fields": {"detail": str(error)}})


def asks_to_compact(request: GenerationRequest) -> bool:
    """Whether the last message is a known program's request to compact."""
    if not request.messages or request.messages[-1]["role"] != "user":
        return False
    texts = texts_of(request.messages[-1].get("content"))
    return any(_ASKS.search(text.rpartition(transcript.CLOSING)[2]) for text in texts)


def shape_of(conversation: Conversation, compaction: GenerationRequest) -> Shape | None:
    """Return the shape of a compaction; None for another conversation.

    An answer and results of tools may stand between the two.
    """
    system, rest = split(conversation.request.messages)
    own, messages = split(compaction.messages)
    asks, kept = messages[-1:], 0
    text = "".join(texts_of(asks[0]["content"])) if len(messages) == 1 else ""
    found = transcript.find(text, rest)
    if found is not None:
        ask, kept = found
        asks = ({**asks[0], "content": ask},)
        kept += 0 if conversation.answer is None else transcript.tokens_of(conversation.answer)
    elif list(messages[: len(rest)]) != list(rest) or len(messages) == len(rest):
        return None
    return Shape(
        system=None if list(own) == list(system) else own,
        tools=compaction.tools,
        same_tools=compaction.tools == conversation.request.tools,
        asks=asks,
        variables=compaction.template_variables,
        transcript=found is not None,
        filled=conversation.filled,
        kept=min(kept, transcript.KEPT_TOKENS),
    )


def split(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Split messages into the leading system messages and the others."""
    at = next((i for i, one in enumerate(messages) if one["role"] != "system"), len(messages))
    return messages[:at], messages[at:]
