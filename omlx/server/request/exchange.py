"""One request of a dialect, between its parser and whatever answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omlx.server.request.dialect import Encoder, Wire
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import GenerationStream


class OnEnd(Protocol):
    def __call__(self, encoder: Encoder, /, *, final: bool) -> None:
        """`final`: the answer has ended; else it may be continued."""
        ...


def _ignore(encoder: Encoder, /, *, final: bool) -> None:
    pass


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
    on_end: OnEnd = _ignore
    kept: bool = False
    background: bool = False
