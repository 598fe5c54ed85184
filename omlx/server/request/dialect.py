"""Dialects as the server sees them: exchanges, pure encoders of answers, framing of streams.

events ─► Encoder.start, feed, feed, …  ─► Wire ─► a stream    (after an error: failed)
events ─► Encoder.body                         ─► one JSON body
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from omlx.errors import OmlxError
from omlx.server.http import sse
from omlx.server.http.body import Json
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import ChoiceEvent, GenerationStream
from omlx.server.request.usage import Progress
from omlx.text.events import OutputEvent


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


class EventEncoder:
    """An encoder whose payloads each come of one event."""

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        payloads: list[Json] = []
        for event in events:
            payloads += self._encode(event.choice, event.event)
        return payloads

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Wire:
    """Framing of a dialect's streams.

    `frame` encodes a payload, `idle` is sent to keep a silent stream open, `done` after the last
    payload. `number` names the field of a payload that repeats the number of its event.
    """

    frame: Callable[[Json], bytes]
    idle: bytes = sse.KEEP_ALIVE
    done: bytes = b""
    media_type: str = sse.MEDIA_TYPE
    number: str | None = None

    def silence(self, progress: Progress | None) -> list[bytes]:
        """Return frames for a silent stream, with progress where a dialect has comments."""
        frames = [self.idle] if self.idle else []
        if progress is not None and self.media_type == sse.MEDIA_TYPE:
            frames.append(progress.comment())
        return frames


OPENAI = Wire(sse.data, done=sse.DONE)
RESPONSES = Wire(sse.named, number="sequence_number")


class OnEnd(Protocol):
    def __call__(self, encoder: Encoder, /, *, final: bool) -> None:
        """`final`: the answer has ended; else it may be continued."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """What to generate, and how to answer.

    `encoder` makes the encoder of a started stream. `on_end` is called once with it when nothing
    more will come, for whatever reason. A `kept` answer is recorded even without a key; one in the
    `background` is generated without any client.
    """

    generation: GenerationRequest
    stream: bool
    id_prefix: str
    encoder: Callable[[GenerationStream], Encoder]
    wire: Wire
    on_end: OnEnd | None = None
    kept: bool = False
    background: bool = False
