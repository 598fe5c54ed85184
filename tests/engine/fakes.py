"""Fakes: a model that counts, drafters that follow a script, stop matchers, a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.cache import KVCache

from omlx.engine.device.model import Cache, MakeCache, cache_maker
from omlx.engine.speculation.drafter import Draft, Drafter, Proposal
from omlx.engine.speculation.drafters import draft_model
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.draft_rows import DraftRow
from omlx.engine.speculation.drafters.sampler import TokenSampler, token_sampler
from omlx.engine.speculation.strategy import Clause
from omlx.engine.step.row import Row
from tests import zoo

VOCAB = 64


class Counting(nn.Module):
    """Says n + 1 after n, modulo VOCAB; keeps the ids it read in a real cache of one layer and
    proves them consecutive.

    Reading an id in `poison` raises.
    """

    def __init__(
        self,
        poison: frozenset[int] = frozenset(),
        make_cache: Callable[[], list[Any]] | None = None,
    ) -> None:
        super().__init__()
        self.poison = poison
        self.make_cache = make_cache or (lambda: [KVCache()])

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        if self.poison and self.poison.intersection(tokens.flatten().tolist()):
            raise ValueError("a poisonous token")
        rows = tokens[:, None, :, None].astype(mx.float32)  # [rows, 1, tokens, 1]
        cache[0].update_and_fetch(rows, rows)
        following = (tokens + 1) % VOCAB
        return mx.where(mx.arange(VOCAB) == following[..., None], 10.0, 0.0)


class Scripted(Drafter):
    """A drafter that is right or wrong at will: `rounds[i]` says how many tokens of round i are
    right, None: no draft.

    It knows what will be said: `answer` follows `prompt_len` tokens. After the script it drafts all
    right.
    """

    kind = "draft"
    name = "scripted"

    def __init__(
        self, prompt_len: int, answer: Sequence[int], rounds: Sequence[int | None]
    ) -> None:
        self.accepted: list[int] = []
        self.expected: list[int] = []
        self.entries: list[str] = []
        self._prompt_len, self._answer, self._rounds = prompt_len, list(answer), list(rounds)

    def propose(self, row: Row, limit: int, clause: Clause) -> Proposal | None:
        return Proposal(self.name, limit, clause=clause) if limit > 0 else None

    def draft(self, row: Row, limit: int) -> Draft | None:
        right = self._rounds.pop(0) if self._rounds else limit
        said = len(row.tokens) - self._prompt_len
        coming = self._answer[said : said + limit]
        if right is None or not coming or limit < 1:
            return None
        right = min(right, len(coming))
        wrong = [(token + 1) % zoo.VOCAB_SIZE for token in coming[right:]]
        self.expected.append(right)
        return Draft(self.name, len(coming), tokens=(*coming[:right], *wrong))

    def observe(self, row: Row, accepted: int) -> None:
        self.accepted.append(accepted)

    def drop(self, row: int) -> None:
        self.entries.append(f"drop {row}")

    def store(self, row: Row) -> None:
        self.entries.append(f"store {row.id}")

    def clear(self) -> None:
        self.entries.append("clear")

    def set_prefix_budget(self, max_bytes: int) -> None:
        self.entries.append(f"limit {max_bytes}")


class Corrupted(DraftModel):
    """The target as its own draft, but wrong at the absolute positions where `bad` holds.

    `accepted` is what each round brought, `expected` where its first wrong token was.
    """

    def __init__(
        self, model: nn.Module, bad: Callable[[int], bool], make_cache: MakeCache | None = None
    ) -> None:
        super().__init__("corrupted", model, zoo.VOCAB_SIZE, make_cache or cache_maker(model))
        self.accepted: list[int] = []
        self.expected: list[int] = []
        self._bad = bad

    def _draft(self, limits: Sequence[tuple[DraftRow, int]]) -> dict[int, Draft]:
        drafts = super()._draft(limits)
        for row, limit in limits:
            first = len(row.target.tokens)
            right = next((i for i in range(limit) if self._bad(first + i)), limit)
            self.expected.append(right)
        return drafts

    def observe(self, row: Row, accepted: int) -> None:
        self.accepted.append(accepted)
        super().observe(row, accepted)

    def _draft_tokens(self, *arguments: Any) -> list[mx.array]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draft_model, "token_sampler", self._sampling)
            return super()._draft_tokens(*arguments)

    @contextmanager
    def _sampling(self, rows: Any) -> Iterator[TokenSampler]:
        with token_sampler(rows) as right:
            sampler = CorruptedSampler(right.places, right.mask, right.advance)
            sampler.bad = self._bad
            yield sampler


class CorruptedSampler(TokenSampler):
    """Takes another token where `bad` holds."""

    bad: Callable[[int], bool]

    def take(self, chosen: mx.array) -> mx.array:
        bad = mx.array([self.bad(place.position) for place in self.places])
        return super().take(mx.where(bad, (chosen + 1) % zoo.VOCAB_SIZE, chosen))


@dataclass
class StopAt:
    """A stop matcher, complete after the token `last`; `seen` holds the tokens pushed."""

    last: int
    seen: list[int] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def push(self, token: int) -> bool:
        self.seen.append(token)
        return token == self.last


class Broken:
    """A stop matcher that raises at its `after`-th token."""

    def __init__(self, after: int) -> None:
        self._left = after

    def push(self, token: int) -> bool:
        self._left -= 1
        if self._left < 0:
            raise LookupError("no such stop")
        return False


class StuckCache(KVCache):
    """A cache whose trim does nothing."""

    def trim(self, n: int) -> int:
        return 0


def same_state(one: Cache, other: Cache) -> bool:
    """Whether two caches hold the same arrays and counters, layer by layer."""
    return same_arrays([layer.state for layer in one], [layer.state for layer in other])


def same_arrays(a: Any, b: Any) -> bool:
    """Whether two nests of arrays and numbers are equal, bit for bit."""
    if isinstance(a, mx.array) and isinstance(b, mx.array):
        return a.shape == b.shape and bool(mx.array_equal(a, b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_arrays(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
