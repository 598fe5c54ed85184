"""A step as data: cache operations in order, then the windows to read. Can be serialised.

A plan refers to no array. Two symbols stand for what only the device knows: `LAST`, the token that
the step in flight samples for this row, and a `draft` of None with `draft_n` > 0, the proposal of
the draft model.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from omlx.engine.disk.record import Run
from omlx.engine.piece import Piece
from omlx.engine.types import Sampling, TokenLogprob, TokenMask
from omlx.engine.vision.spans import ImageSpan, PreparedImage

LAST: Final = "last"

Loaded: TypeAlias = Sequence[Run]
"""Runs of a prefix read from disk."""


@dataclass(frozen=True, slots=True)
class Open:
    """Start a row with an empty cache."""

    row: int
    sampling: Sampling
    top_logprobs: int | None
    prompt_logprobs: int | None = None
    spans: tuple[ImageSpan, ...] = ()
    op: Literal["open"] = "open"


@dataclass(frozen=True, slots=True)
class Restore:
    """Build a row's cache of `length` tokens from saved pieces, with room for `prompt` tokens."""

    row: int
    pieces: tuple[int, ...]
    length: int
    prompt: int
    op: Literal["restore"] = "restore"


@dataclass(frozen=True, slots=True)
class Load:
    """Take runs of a prefix read from disk; with the last ones, which give its `length`
    (0: it is of no use), build the row's cache, with room for `prompt` tokens.
    """

    row: int
    length: int | None = None
    prompt: int = 0
    op: Literal["load"] = "load"


@dataclass(frozen=True, slots=True)
class Rewind:
    """Roll the row's cache back to `length` tokens."""

    row: int
    length: int
    op: Literal["rewind"] = "rewind"


@dataclass(frozen=True, slots=True)
class Merge:
    """Append single rows to the batch."""

    rows: tuple[int, ...]
    op: Literal["merge"] = "merge"


@dataclass(frozen=True, slots=True)
class Extract:
    """Copy a batch row into a cache of its own. It stays in the batch until a filter."""

    row: int
    op: Literal["extract"] = "extract"


@dataclass(frozen=True, slots=True)
class Filter:
    """Reduce the batch to the rows `keep`, in this order; drop the batch if there are none."""

    keep: tuple[int, ...]
    op: Literal["filter"] = "filter"


@dataclass(frozen=True, slots=True)
class Save:
    """Copy pieces of the row's own cache into the prefix cache."""

    row: int
    pieces: tuple[Piece, ...]
    op: Literal["save"] = "save"


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete a row, with its cache if it still has one."""

    row: int
    op: Literal["drop"] = "drop"


@dataclass(frozen=True, slots=True)
class Evict:
    """Delete saved pieces."""

    pieces: tuple[int, ...]
    op: Literal["evict"] = "evict"


@dataclass(frozen=True, slots=True)
class Look:
    """Compute steps [start, stop) of the vision tower over an image, on behalf of a row."""

    row: int
    image: str
    start: int
    stop: int
    op: Literal["look"] = "look"


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the features of images."""

    images: tuple[str, ...]
    op: Literal["forget"] = "forget"


CacheOp: TypeAlias = Annotated[
    Open | Restore | Load | Rewind | Merge | Extract | Filter | Save | Drop | Evict | Look | Forget,
    Field(discriminator="op"),
]


def rows_of(op: CacheOp) -> tuple[int, ...]:
    """Return the rows whose caches an operation reads or writes."""
    match op:
        case Merge(rows=rows):
            return rows
        case Filter(keep=keep):
            return keep
        case Drop() | Evict() | Forget():
            return ()
    return (op.row,)


@dataclass(frozen=True)
class Window:
    """The part of one row in a forward pass: pending tokens, then the draft.

        start ── pending ──┬── draft_n       in the cache before the pass: `start` tokens
                           └─ samples draft_n + 1 positions, from start + pending on

    A prefill chunk (`sample` False) samples nothing; if the prompt's `next_token` is
    given, it scores its own tokens but the first, and that one. `history` holds the tokens before
    `start` that penalties look at.
    """

    row: int
    start: int
    tokens: tuple[int, ...] | Literal["last"]
    draft_n: int = 0
    draft: tuple[int, ...] | None = None
    drafter: str | None = None
    sample: bool = True
    history: tuple[int, ...] = ()
    next_token: int | None = None

    @cached_property
    def pending(self) -> int:
        return 1 if self.tokens == LAST else len(self.tokens)

    @cached_property
    def width(self) -> int:
        return self.pending + self.draft_n


@dataclass(frozen=True)
class Forward:
    """One pass of the target: one row with its own cache, or the batch, one window per row."""

    windows: tuple[Window, ...]
    batched: bool = False

    @cached_property
    def rows(self) -> tuple[int, ...]:
        return tuple([window.row for window in self.windows])


@dataclass(frozen=True)
class Plan:
    """A step as data: cache operations in order, then forward passes.

    Derived values are cached: each step asks several times.
    """

    ops: tuple[CacheOp, ...]
    forwards: tuple[Forward, ...]

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        if len(self.forwards) == 1:
            return self.forwards[0].windows
        return tuple(chain.from_iterable([forward.windows for forward in self.forwards]))

    @cached_property
    def prompts(self) -> tuple[Window, ...]:
        """Windows over prompts, which sample nothing."""
        return tuple([window for window in self.windows if not window.sample])

    @cached_property
    def drafts(self) -> bool:
        """Whether a window has a draft."""
        return any(map(attrgetter("draft_n"), self.windows))

    @cached_property
    def one_pass(self) -> bool:
        """Whether it is a single sampling pass, without operations other than rollbacks."""
        if len(self.forwards) != 1 or not {*map(type, self.ops)} <= {Rewind}:
            return False
        (forward,) = self.forwards
        return forward.windows[0].sample and forward.batched == (len(forward.windows) > 1)

    @cached_property
    def prompt_tokens(self) -> int:
        return sum(map(attrgetter("width"), self.prompts))

    def to_bytes(self) -> bytes:
        return _ADAPTER.dump_json(self)

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        return _ADAPTER.validate_json(data)


_ADAPTER: Final = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True)
class Step:
    """A plan with what belongs to it and stays in this process, by row.

    `drafts` holds device arrays [draft_n] of token ids for windows without host ids; `masks` the
    token masks of rows with structured output, advanced to the committed tokens. `images` holds
    those that the plan looks at, by name, `loads` what it loads. `caught_up`: while it was planned,
    a draft model read a slice of what it lags.
    """

    plan: Plan
    drafts: Mapping[int, Any] = field(default_factory=dict)
    masks: Mapping[int, TokenMask] = field(default_factory=dict)
    images: Mapping[str, PreparedImage] = field(default_factory=dict)
    loads: Mapping[int, Loaded] = field(default_factory=dict)
    caught_up: bool = False


LogprobRows: TypeAlias = tuple[tuple[float, tuple[tuple[int, float], ...]], ...]
"""For each token: its logprob, and the best (id, logprob) pairs."""


@dataclass(frozen=True, slots=True)
class Read:
    """The result of one window: the sampled ids and the draft that they verify, or an error.

    `logprobs` are those of the sampled ids, or of a prompt's tokens.
    """

    sampled: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    logprobs: LogprobRows | None = None
    error: Exception | None = None

    @property
    def accepted(self) -> int:
        """Number of leading draft tokens that equal the sampled ones."""
        for i, token in enumerate(self.draft):
            if token != self.sampled[i]:
                return i
        return len(self.draft)

    def token_logprobs(
        self, tokens: Iterable[int], top: int | None
    ) -> tuple[TokenLogprob, ...] | None:
        """Return logprobs of `tokens`, with `top` alternatives each; None if not requested."""
        if top is None or self.logprobs is None:
            return None
        pairs = zip(tokens, self.logprobs, strict=False)
        return tuple(TokenLogprob(token, logprob, best[:top]) for token, (logprob, best) in pairs)


class PendingOps:
    """Pending cache operations: `next` are those of the next plan, `later` of the plan after it."""

    def __init__(self) -> None:
        self.next: list[CacheOp] = []
        self.later: list[CacheOp] = []

    def advance(self) -> None:
        """Note that the next plan is made: `later` becomes `next`."""
        self.next, self.later = self.later, []

    def discard(self, row: int) -> list[int]:
        """Remove rollbacks and saves of a failed row. Return the ids of its unsaved pieces."""
        unsaved = saved_pieces([*self.next, *self.later], {row})
        self.next = [op for op in self.next if not _depends(op, row)]
        self.later = [op for op in self.later if not _depends(op, row)]
        return unsaved


def _depends(op: CacheOp, row: int) -> bool:
    return isinstance(op, Rewind | Save) and op.row == row


def saved_pieces(ops: Iterable[CacheOp], rows: Container[int] | None = None) -> list[int]:
    """Return the ids of the pieces that operations save from `rows`, or from any (None)."""
    saves = [op for op in ops if isinstance(op, Save) and (rows is None or op.row in rows)]
    return [piece.id for piece in chain.from_iterable(save.pieces for save in saves)]


def restores(plan: Plan, row_id: int) -> bool:
    """Whether a plan restores a row's cached prefix, from memory or from disk."""
    return any(isinstance(op, Restore | Load) and op.row == row_id for op in plan.ops)
