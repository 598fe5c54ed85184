"""The fields that bodies and chunks of OpenAI's answers share."""

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
    """`token_bytes` is None unless logprobs were requested."""

    id: str
    model: str
    created: int
    token_bytes: Callable[[int], bytes] | None = None

    @classmethod
    def of(cls, stream: GenerationStream, *, logprobs: bool = False) -> Head:
        token_bytes = stream.served.token_bytes if logprobs else None
        return cls(stream.id, stream.served.id, stream.created, token_bytes)

    def body(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


def reason(finish: Finish) -> str:
    """The finish reason in OpenAI's terms.

    A choice that ends within a call, by a stop string, is no tool call.
    """
    if finish.tool_calls and finish.stop is None and finish.reason is FinishReason.STOP:
        return "tool_calls"
    return _REASONS[finish.reason]


def finite(logprob: float) -> float:
    """Replace -infinity, which JSON does not have, by the lowest logprob that clients expect."""
    return logprob if logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB
