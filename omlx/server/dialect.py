"""What an API dialect is to the rest of the server: a pure encoder of one answer, and how its frames go over the wire.

events ─► Encoder.start, feed, feed, …  ─► Wire ─► a stream          (what failed: Encoder.failed)
events ─► Encoder.body                         ─► one JSON body
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from omlx.errors import OmlxError
from omlx.server import sse
from omlx.text.events import OutputEvent

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    choice: int
    event: OutputEvent


class Encoder(Protocol):
    """One answer in the words of one API. No I/O; a stream's encoder remembers what it has said."""

    def start(self) -> list[Json]:
        """What a stream begins with."""
        ...

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        """What a stream says of these events, up to the last `Finish`, which ends it."""
        ...

    def failed(self, error: OmlxError) -> list[Json]:
        """What ends a stream instead, after an error."""
        ...

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        """The whole answer, from all of its events."""
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """`frame` is one payload as bytes, `idle` what keeps a silent stream open, `done` what follows a good end."""

    frame: Callable[[Json], bytes]
    idle: bytes = sse.KEEP_ALIVE
    done: bytes = b""


OPENAI = Wire(sse.data, done=sse.DONE)
NAMED = Wire(sse.named)
"""Frames that carry their `type` as the event's name too."""
