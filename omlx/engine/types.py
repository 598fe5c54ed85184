"""The engine's interface: requests in, events out. Frozen, so that threads can share them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import AUTO, Strategy
from omlx.engine.vision.spans import ImageSpan, PreparedImage
from omlx.errors import OmlxError, Reason
from omlx.exactness import Bounds
from omlx.records import PrefixStats, RequestStats

URGENCY_RATIO: Final = 20
"""Seconds, or steps, of urgent work for each of less urgent work."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Penalties look at the last `*_context` tokens, prompt included.

    With `xtc_probability` a position loses the tokens above `xtc_threshold`, except for the least
    likely of them and for ids of `xtc_spared`. `choice` numbers the answers to one chat request:
    each has noise of its own. None of `end_ids` is sampled at a position, counted from the prompt's
    first token, before `end_position`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_spared: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    presence_context: int = 20
    frequency_penalty: float = 0.0
    frequency_context: int = 20
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    choice: int = 0
    end_ids: tuple[int, ...] = ()
    end_position: int = 0

    @property
    def penalised(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def history(self) -> int:
        """Past tokens that penalties look at."""
        if not self.penalised:
            return 0
        return max(self.repetition_context, self.presence_context, self.frequency_context)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculation as requested. `draft_length` None: the model's default.

    `prediction` holds the ids of a text that the answer is expected to resemble (predicted
    outputs).
    """

    strategy: Strategy = AUTO
    draft_length: DraftLength | None = None
    prediction: tuple[int, ...] = ()


class StopMatcher(Protocol):
    """Finds stop strings in one request's output. Used on the engine thread only."""

    def push(self, token: int) -> bool:
        """Append a committed token. Return whether a stop string is complete."""
        ...


class TokenMask(Protocol):
    """The ids that structured output allows next. Used on the engine thread only.

    Stands at the committed tokens: advanced along a draft, it is rolled back afterwards.
    """

    @property
    def ended(self) -> bool:
        """Whether the output is complete: no token is allowed."""
        ...

    @property
    def free(self) -> int:
        """Lower bound of the number of next tokens that are unconstrained, whatever they are."""
        ...

    def bits(self) -> bytes | None:
        """One bit per id, set if allowed next; the lowest bit of byte 0 is id 0. None: all are.

        At least one bit is set. Modifies nothing. Raises EngineError if the mask cannot be
        computed.
        """
        ...

    def advance(self, token: int) -> bool:
        """Append a token; return False, unchanged, if it is not allowed. Raises EngineError."""
        ...

    def rollback(self, n: int) -> None:
        """Remove the newest n tokens. Raises EngineError."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One row to generate. A chat request with `n` choices becomes n of these.

    `tokens` is the prompt (ids, at least one). `max_tokens` None: to the end of the context; 0: the
    prompt is computed for the prefix cache alone. `top_logprobs` None: no logprobs; 0 to 20: the
    logprob of each output token and of that many alternatives. `prompt_logprobs`: the same for the
    prompt without its first token; no prefix is restored then. The first `stable` tokens are those
    with which the next turn of the conversation begins; 0: unknown. `mask` constrains the output;
    None: free text. Requests of one `group`, the choices of a client's request, take turns with
    other groups. `spans` are the image tokens of the prompt, in order; `images` has each image that
    they show. The last `resumed` of `tokens` are no prompt but output, which an earlier run of this
    request committed; `stop` and `mask` have read them. A request in the `background` is cancelled
    by the next one, to whatever model, and at once if another one is open. Requests of a lower
    `priority` number go first; others give way to them, and continue afterwards.
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
    group: str = ""
    spans: tuple[ImageSpan, ...] = ()
    images: tuple[PreparedImage, ...] = ()
    resumed: int = 0
    background: bool = False
    priority: int = 0

    @property
    def prefill_only(self) -> bool:
        """Whether the prompt is computed and stored, and nothing is generated."""
        return self.max_tokens == 0

    @property
    def prompt_n(self) -> int:
        """Tokens of the prompt, those `resumed` left out."""
        return len(self.tokens) - self.resumed


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Counts of one model's requests, by state."""

    waiting: int
    prefilling: int
    decoding: int


@dataclass(frozen=True, slots=True)
class PromptForecast:
    """Forecast of a prompt: tokens `cached` in memory, and the seconds to the first token if the
    model did nothing else; None while no prompt of that size was measured.
    """

    cached: int
    first_token_s: float | None


class CalibrationState(StrEnum):
    """Whether a model's passes are measured while the engine is idle."""

    OFF = "off"
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """The state of a loaded model between two steps.

    `drafters` are kinds by name; `off_reason` says why none of them may draft, `missing` why none
    of a kind is among them, `unbatchable` why rows cannot share a batch. `costs` is made by
    `CostModel.to_json`. A strict model keeps to `bounds`.
    """

    drafters: dict[str, str]
    off_reason: Reason | None
    missing: Mapping[str, Reason]
    unbatchable: Reason | None
    costs: dict[str, Any]
    prefix: PrefixStats
    calibration: CalibrationState = CalibrationState.OFF
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-softmax after penalties, before filters and temperature; for prompt tokens, of the
    unprocessed logits.

    `top` holds (id, logprob), best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Progress of a prompt, in tokens. `logprobs` are those of this chunk, if requested."""

    request_id: str
    done: int
    total: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """New output tokens, in order. A stop token is committed too, as the last one.

    `drafted[i]` says whether token i was proposed by a drafter.
    """

    request_id: str
    tokens: tuple[int, ...]
    drafted: tuple[bool, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a successful request. `stopped_by` is the stop token, if one ended it."""

    request_id: str
    reason: FinishReason
    stats: RequestStats
    stopped_by: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a failed request."""

    request_id: str
    error: OmlxError


Event: TypeAlias = PrefillProgress | TokensCommitted | Finished | Failed


EventSink: TypeAlias = Callable[[Sequence[Event]], None]
"""Receiver of one step's events. Called on the engine thread; must not block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts of rows (`*_rows`, `max_waiting`), bytes of cache arrays, seconds (`pause_s`), tokens.

    `prefill_chunk` bounds one prefill pass while no row decodes, `prefill_slice` while some do.
    With `pause_s`, the longest pause of a stream, the time of such passes is bounded instead (see
    omlx.engine.step.priority). Passes grow from `prefill_first` while they are short; None: they do
    not grow. `prefix_bytes` bounds the prefix caches, the draft model's included, in blocks of
    `block_tokens`. `num_draft_tokens` fixes the draft length of requests that set none; None leaves
    it to the policy. A `strict` model keeps to `bounds`, made of measurements. Token ids from
    `vocab_size` on are refused; `missing_ids` counts those that the tokenizer has nevertheless. A
    model that does not `generate` reads texts that are no requests.
    """

    context_length: int
    vocab_size: int = 1 << 31
    missing_ids: int = 0
    max_rows: int = 8
    max_waiting: int = 512
    prefill_chunk: int = 2048
    prefill_first: int | None = None
    prefill_slice: int = 256
    pause_s: float | None = None
    batch_bytes: int = 4 << 30
    prefix_bytes: int = 1 << 30
    block_tokens: int = 64
    num_draft_tokens: int | None = None
    generates: bool = True
    strict: bool = False
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Traits:
    """Kinds of layers of a cache. `sliding_window` is the smallest one in tokens, or None.

    `unsupported` names the cache classes that cannot be rolled back. Recurrent layers may record
    their states in passes of at most `recorded` tokens.
    """

    recurrent: bool = False
    sliding_window: int | None = None
    unsupported: tuple[str, ...] = ()
    recorded: int = 0

    def replays(self, width: int) -> bool:
        """Return whether a rejection in a window of `width` tokens leaves accepted ones pending."""
        return self.recurrent and width > self.recorded

    def rollback(self, width: int) -> str:
        """Return the name of a rollback after a window of `width`, for `DrafterStats.repairs`."""
        if self.replays(width):
            return "restore"
        if self.sliding_window:
            return "slice"
        return "trim"


ATTENTION_ALONE: Final = Traits()

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work that pauses at each `yield` and returns its result."""


def run_through(steps: Generator[object, None, T]) -> T:
    """Run all steps without pauses, where no other model is served. Return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: T = finished.value
            return result
