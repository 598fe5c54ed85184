"""An API dialect for the rest of the server: a pure encoder of one answer, and the framing of its
streams.

events ─► Encoder.start, feed, feed, …  ─► Wire ─► a stream    (after an error: failed)
events ─► Encoder.body                         ─► one JSON body
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from omlx.errors import OmlxError
from omlx.server.http import sse
from omlx.text.events import OutputEvent

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    choice: int
    event: OutputEvent


class Encoder(Protocol):
    """Encodes one answer in one dialect. No I/O; keeps the state of a stream."""

    def start(self) -> list[Json]:
        """The first payloads of a stream."""
        ...

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        """The payloads for these events; the last `Finish` ends the stream."""
        ...

    def failed(self, error: OmlxError) -> list[Json]:
        """The last payloads of a stream that failed."""
        ...

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        """The whole answer from all of its events, for a response that is no stream."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """`frame` encodes one payload, `idle` is sent to keep a silent stream open, `done` after the
    last payload. `number` names the field of a payload that repeats the number of its event.
    """

    frame: Callable[[Json], bytes]
    idle: bytes = sse.KEEP_ALIVE
    done: bytes = b""
    media_type: str = sse.MEDIA_TYPE
    number: str | None = None


OPENAI = Wire(sse.data, done=sse.DONE)
NAMED = Wire(sse.named)
"""Frames that repeat their `type` as the event's name."""
RESPONSES = Wire(sse.named, number="sequence_number")
