"""What the bodies and chunks of an answer repeat, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from omlx.engine.types import FinishReason
from omlx.server.dialect import Json
from omlx.server.stream import GenerationStream
from omlx.text.events import Finish

_REASONS: Final = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "stop",
}
_LOWEST_LOGPROB: Final = -9999.0


@dataclass(frozen=True, slots=True)
class Head:
    """`token_bytes` is None unless logprobs were asked for."""

    id: str
    model: str
    created: int
    token_bytes: Callable[[int], bytes] | None = None

    @classmethod
    def of(cls, stream: GenerationStream, *, logprobs: bool = False) -> Head:
        return cls(
            stream.id,
            stream.served.id,
            stream.created,
            stream.served.token_bytes if logprobs else None,
        )

    def body(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


def reason(finish: Finish) -> str:
    """Why a choice ended, in the words of this API. A stop string may have cut a call."""
    if finish.tool_calls and finish.stop is None and finish.reason is FinishReason.STOP:
        return "tool_calls"
    return _REASONS[finish.reason]


def finite(logprob: float) -> float:
    """JSON has no infinity: a banned token has the lowest logprob that clients expect."""
    return logprob if logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB
