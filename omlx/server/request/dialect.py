"""Dialects as the server sees them: exchanges, pure encoders of answers, framing of streams.

events ─► Encoder.start, feed, feed, …  ─► Wire ─► a stream    (after an error: failed)
events ─► Encoder.body                         ─► one JSON body
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from omlx.errors import OmlxError
from omlx.server.http.transport import EVENTS, Json
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
        """The payloads of `events`; the last `Finish` ends the stream."""
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


DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_ID: Final = b"id: "

_BREAKS: Final = {mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""Many clients split a stream at any of Unicode's line ends; JSON escapes only those of ASCII."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event_data(payload: Json) -> bytes:
    return b"data: " + _one_line(payload) + b"\n\n"


def json_line(payload: Json) -> bytes:
    """A frame of NDJSON."""
    return _one_line(payload) + b"\n"


def _one_line(payload: Json) -> bytes:
    text = _encode(payload)
    for mark, escaped in _BREAKS.items():
        text = text.replace(mark, escaped)
    return text.encode()


def named_event(payload: Json) -> bytes:
    """A frame whose event name is the payload's `type`."""
    return f"event: {payload['type']}\n".encode() + event_data(payload)


def numbered_event(number: int, frame: bytes) -> bytes:
    """A frame with an id, which a client that connects again sends as `Last-Event-ID`."""
    return b"%b%d\n%b" % (_ID, number, frame)


def event_number(frame: bytes) -> int | None:
    """Return the id of a frame, if it has one."""
    if not frame.startswith(_ID):
        return None
    return int(frame[len(_ID) : frame.index(b"\n")])


def numbered_idle(frame: bytes) -> bytes:
    """An idle frame of a stream with ids: a comment without the blank line that ends an event.

    Once they have seen an id, the clients of OpenAI and Anthropic take each blank line for an event
    and fail, as it has no data.
    """
    return frame.removesuffix(b"\n") if frame.startswith(b":") else frame


@dataclass(frozen=True, slots=True)
class Wire:
    """Framing of a dialect's streams.

    `frame` encodes a payload, `idle` is sent to keep a silent stream open, `done` after the last
    payload. `number` names the field of a payload that repeats the number of its event.
    """

    frame: Callable[[Json], bytes]
    idle: bytes = KEEP_ALIVE
    done: bytes = b""
    media_type: str = EVENTS
    number: str | None = None

    def silence(self, progress: Progress | None) -> list[bytes]:
        """Return frames for a silent stream, with progress where a dialect has comments."""
        frames = [self.idle] if self.idle else []
        if progress is not None and self.media_type == EVENTS:
            frames.append(progress.comment())
        return frames


OPENAI = Wire(event_data, done=DONE)
RESPONSES = Wire(named_event, number="sequence_number")


class OnEnd(Protocol):
    def __call__(self, encoder: Encoder, /, *, final: bool) -> None:
        """`final`: the answer has ended; else it may be continued."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request in no dialect, and the dialect of its answer.

    `encoder` makes the encoder of a started stream. `on_end` is called once with that encoder, when
    the stream has ended for any reason. A `kept` answer is recorded even without a key; an answer
    in the `background` is generated without any client.
    """

    generation: GenerationRequest
    stream: bool
    id_prefix: str
    encoder: Callable[[GenerationStream], Encoder]
    wire: Wire
    on_end: OnEnd | None = None
    kept: bool = False
    background: bool = False
