"""What crosses the border of the engine: requests in, events out. All frozen; safe to hand from thread to thread."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from omlx.draft_length import DraftLength
from omlx.engine.strategy import AUTO, Strategy
from omlx.errors import OmlxError
from omlx.errors import Reason as Reason
from omlx.records import PrefixStats, RequestStats


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn. Penalties look at the last `*_context` tokens, prompt included (as mlx-lm does)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    presence_context: int = 20
    frequency_penalty: float = 0.0
    frequency_context: int = 20
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    choice: int = 0

    @property
    def penalised(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def history(self) -> int:
        """How many past tokens the penalties look at."""
        if not self.penalised:
            return 0
        return max(self.repetition_context, self.presence_context, self.frequency_context)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a request asks of speculation. `draft_length` None leaves its bounds to the model's defaults.

    `prediction` holds the ids of a text that the answer is expected to resemble (predicted outputs).
    """

    strategy: Strategy = AUTO
    draft_length: DraftLength | None = None
    prediction: tuple[int, ...] = ()


class StopMatcher(Protocol):
    """Watches one request's output for stop strings. Injected from above; lives on the engine thread."""

    def push(self, token: int) -> bool:
        """Take the next committed token; True if a stop string is now complete. Modifies the matcher."""
        ...


class TokenMask(Protocol):
    """Says which tokens may come next in one request's output. Injected from above; lives on the engine thread.

    It follows what is committed. For what is only drafted it is advanced and taken back.
    """

    @property
    def ended(self) -> bool:
        """Whether the output is complete: nothing may follow."""
        ...

    def bits(self) -> bytes | None:
        """A bit for each id, set if it may come next; the lowest bit of the first byte is id 0. None: any may.

        At least one bit is set. Modifies nothing. Raises EngineError if that cannot be told.
        """
        ...

    def advance(self, token: int) -> bool:
        """Take the next token. False if it may not come; then nothing is modified. Raises EngineError."""
        ...

    def rollback(self, n: int) -> None:
        """Take back the newest n tokens. Raises EngineError."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. A chat request with `n` choices becomes n of these.

    `tokens` is the prompt (ids, at least one). `max_tokens` None means to the end of the context.
    `top_logprobs` None: no logprobs; 0..20: logprob of the token and that many alternatives.
    `prompt_logprobs`: the same for every token of the prompt but the first; all of it is computed then.
    The first `stable` tokens are those that the next turn of a conversation will begin with; 0: nobody knows.
    The `mask` bounds what may be said; None: anything.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()
    stop: StopMatcher | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculation: Speculation = field(default_factory=Speculation)
    stable: int = 0
    mask: TokenMask | None = None


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests of one model are where."""

    waiting: int
    prefilling: int
    decoding: int


class CalibrationState(StrEnum):
    """Whether passes of a model are measured in idle moments: never, in those to come, no more, or no more because
    something went wrong."""

    OFF = "off"
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """What there is to say of a loaded model between two steps. `drafters` are kinds by name; `off` says why none of
    them may draft, `no_draft` why no model is among them; `costs` is what `CostModel.to_json` gives."""

    drafters: dict[str, str]
    off: Reason | None
    no_draft: Reason | None
    unbatchable: Reason | None
    costs: dict[str, Any]
    prefix: PrefixStats
    calibration: CalibrationState = CalibrationState.OFF


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-softmax after penalties, before filters and temperature; of a prompt's tokens, that of the model's own
    logits. `top` holds (id, logprob), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` prompt tokens are read. `logprobs`, where asked for, go on where the event before it ended."""

    request_id: str
    done: int
    total: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """New output tokens, in order. The stop token itself is committed too and is the last one of its event.

    `drafted[i]` says whether token i was proposed by a drafter.
    """

    request_id: str
    tokens: tuple[int, ...]
    drafted: tuple[bool, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended well. `stopped_by` is the stop id, or None (length, stop string)."""

    request_id: str
    reason: FinishReason
    stats: RequestStats
    stopped_by: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that did not end well."""

    request_id: str
    error: OmlxError


Event: TypeAlias = PrefillProgress | TokensCommitted | Finished | Failed


class EventSink(Protocol):
    """Where the events of one step go; called on the engine thread, must not block."""

    def __call__(self, events: Seq[Event], /) -> None: ...
