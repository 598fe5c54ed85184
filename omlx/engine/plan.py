"""A step as data: cache operations in order, then the windows to read. Survives a round trip through bytes.

Nothing in a plan refers to an array. Two symbols stand for what only the device knows: `LAST`, the token that the
step in flight samples for this row, and a `draft` of None with `draft_n` > 0, the proposal of the draft model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from omlx.engine.piece import Piece
from omlx.engine.types import Sampling, TokenLogprob, TokenMask

LAST: Final = "last"


@dataclass(frozen=True, slots=True)
class Open:
    """A new row with an empty cache."""

    row: int
    sampling: Sampling
    top_logprobs: int | None
    prompt_logprobs: int | None = None
    op: Literal["open"] = "open"


@dataclass(frozen=True, slots=True)
class Restore:
    """An open row gets a cache of `length` tokens, made of kept pieces, with room for a prompt of `prompt` tokens."""

    row: int
    pieces: tuple[int, ...]
    length: int
    prompt: int
    op: Literal["restore"] = "restore"


@dataclass(frozen=True, slots=True)
class Rewind:
    """The row's cache goes back to `length` tokens."""

    row: int
    length: int
    op: Literal["rewind"] = "rewind"


@dataclass(frozen=True, slots=True)
class Merge:
    """Single rows join the batch, behind those already in it."""

    rows: tuple[int, ...]
    op: Literal["merge"] = "merge"


@dataclass(frozen=True, slots=True)
class Extract:
    """A batch row gets a cache of its own again. It stays in the batch until a filter."""

    row: int
    op: Literal["extract"] = "extract"


@dataclass(frozen=True, slots=True)
class Filter:
    """The batch keeps only these rows, in this order; an empty batch is dropped."""

    keep: tuple[int, ...]
    op: Literal["filter"] = "filter"


@dataclass(frozen=True, slots=True)
class Save:
    """Copy pieces out of the row's own cache, which goes on as it is."""

    row: int
    pieces: tuple[Piece, ...]
    op: Literal["save"] = "save"


@dataclass(frozen=True, slots=True)
class Drop:
    """The row is forgotten, with its cache if it still has one."""

    row: int
    op: Literal["drop"] = "drop"


@dataclass(frozen=True, slots=True)
class Evict:
    """Forget kept pieces."""

    pieces: tuple[int, ...]
    op: Literal["evict"] = "evict"


CacheOp: TypeAlias = Annotated[
    Open | Restore | Rewind | Merge | Extract | Filter | Save | Drop | Evict,
    Field(discriminator="op"),
]


@dataclass(frozen=True, slots=True)
class Window:
    """What one forward pass reads for one row: pending tokens, then the draft.

    `start` tokens are in the cache before it. The last `draft_n` + 1 logits are sampled, for the positions from
    `start + pending` on; a prefill chunk (`sample` False) needs none. If it has an `end`, the prompt's token behind it,
    the logprobs of its tokens but the first, and of that one, are read. `pad` tokens behind the draft only fill the
    pass up to a width that costs less; nobody looks at them. `history` holds the tokens before `start` that penalties
    see.
    """

    row: int
    start: int
    tokens: tuple[int, ...] | Literal["last"]
    draft_n: int = 0
    draft: tuple[int, ...] | None = None
    drafter: str | None = None
    sample: bool = True
    history: tuple[int, ...] = ()
    pad: int = 0
    end: int | None = None

    @property
    def pending(self) -> int:
        return 1 if self.tokens == LAST else len(self.tokens)

    @property
    def width(self) -> int:
        return self.pending + self.draft_n + self.pad


@dataclass(frozen=True, slots=True)
class Forward:
    """One call of the target: one row with its own cache, or all rows of the batch, a token each."""

    windows: tuple[Window, ...]
    batched: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    ops: tuple[CacheOp, ...]
    forwards: tuple[Forward, ...]

    def with_drafts(self, drafts: dict[int, tuple[int, ...]]) -> Plan:
        """The same plan with device drafts replaced by what was read: row -> token ids. For replay elsewhere."""
        forwards = tuple(
            replace(
                f,
                windows=tuple(
                    replace(w, draft=drafts[w.row]) if w.draft_n else w for w in f.windows
                ),
            )
            for f in self.forwards
        )
        return replace(self, forwards=forwards)

    def to_bytes(self) -> bytes:
        return _ADAPTER.dump_json(self)

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        return _ADAPTER.validate_json(data)


_ADAPTER: Final = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A plan with what belongs to it and stays in this process, by row.

    `drafts` holds device arrays [draft_n] of token ids for windows without host ids; `masks` the token masks of rows
    with structured output, advanced to the committed tokens.
    """

    plan: Plan
    drafts: Mapping[int, Any] = field(default_factory=dict)
    masks: Mapping[int, TokenMask] = field(default_factory=dict)


LogprobRows: TypeAlias = tuple[tuple[float, tuple[tuple[int, float], ...]], ...]
"""For each sampled id: its logprob, and the best (id, logprob) pairs."""


@dataclass(frozen=True, slots=True)
class Read:
    """What came back for one window: the sampled ids, the draft they verify, or why there is nothing. `logprobs` are
    those of the sampled ids, or of a prompt's."""

    sampled: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    logprobs: LogprobRows | None = None
    error: Exception | None = None

    @property
    def accepted(self) -> int:
        """The length of the leading run in which the target sampled just what was drafted."""
        for i, token in enumerate(self.draft):
            if token != self.sampled[i]:
                return i
        return len(self.draft)

    def token_logprobs(
        self, tokens: Iterable[int], top: int | None
    ) -> tuple[TokenLogprob, ...] | None:
        """Logprobs of the first of `tokens`, as many as were read, each with its `top` alternatives; None: unwanted."""
        if top is None or self.logprobs is None:
            return None
        pairs = zip(tokens, self.logprobs, strict=False)
        return tuple(TokenLogprob(token, logprob, best[:top]) for token, (logprob, best) in pairs)
