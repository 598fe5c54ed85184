"""Rows of one buffer behave as lists: written, rolled back, joined, removed and taken out."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from omlx.engine.device.ragged_cache import SPARE, RaggedKVCache
from omlx.errors import RewindError
from tests.lanes import few

GARBAGE = 1e4


@dataclass
class Model:
    """Rows as lists of numbers, one per token, and the cache that must hold the same.

    `safe[i]` is the length below which row i need not be rolled back.
    """

    window: int | None
    rng: random.Random
    rows: list[list[float]] = field(default_factory=list)
    safe: list[int] = field(default_factory=list)
    cache: Any = None
    next: float = 1.0

    def fresh(self, count: int) -> list[float]:
        values = [self.next + i for i in range(count)]
        self.next += count
        return values

    def single(self) -> tuple[list[float], Any]:
        """A row alone: computed in one pass, then token by token."""
        row = self.fresh(self.rng.choice((1, 5, 40, 300)))
        cache: Any = KVCache() if self.window is None else RotatingKVCache(self.window)
        at = self.rng.randint(1, len(row))
        for part in (row[:at], *([value] for value in row[at : at + 30]), row[at + 30 :]):
            if part:
                cache.update_and_fetch(*arrays([part]))
        return row, cache

    def join(self) -> None:
        joining = [self.single() for _ in range(self.rng.randint(1, 2))]
        merged = RaggedKVCache.merge([cache for _, cache in joining])
        if self.cache is None:
            self.cache = merged
        else:
            self.cache.extend(merged)
        self.rows += [row for row, _ in joining]
        self.safe += [len(row) for row, _ in joining]

    def write(self) -> None:
        """One pass over windows of different lengths, and a rollback of some."""
        n = self.rng.choice((1, 1, 1, 2, 7, 64))
        self.safe = [len(row) for row in self.rows]
        new = [self.fresh(n) for _ in self.rows]
        mask = self.cache.make_mask(n, return_array=True)
        keys, values = self.cache.update_and_fetch(*arrays(new))
        for row, more in zip(self.rows, new, strict=True):
            row += more
        self.compare(keys, values, mask, n)
        for i in range(len(self.rows)):
            if self.rng.random() < 0.6:
                self.roll_back(i, self.rng.randint(self.safe[i], len(self.rows[i])))

    def roll_back(self, row: int, length: int) -> None:
        self.cache.rewind(row, length)
        del self.rows[row][length:]

    def keep(self) -> None:
        indices = list(range(len(self.rows)))
        if self.rng.random() < 0.5:  # the last row takes the place of one that leaves
            place, last = self.rng.choice(indices), indices.pop()
            indices[place : place + 1] = [last] if place != last else []
            indices = indices or [last]
        else:
            self.rng.shuffle(indices)
            indices = indices[: self.rng.randint(1, len(indices))]
        self.cache.filter(indices)
        self.rows = [self.rows[i] for i in indices]
        self.safe = [self.safe[i] for i in indices]

    def take_out(self) -> None:
        """A row that leaves holds what it would hold alone."""
        row = self.rng.randrange(len(self.rows))
        single = self.cache.extract(row)
        most = len(self.rows[row]) if self.window is None else self.window
        assert single.offset == len(self.rows[row])
        held, _ = single.keys_and_values() if self.window else single.state[:2]
        assert held[0, 0, :, 0].tolist() == self.rows[row][-most:]

    def compare(self, keys: mx.array, values: mx.array, mask: mx.array, n: int) -> None:
        """Every new token sees exactly the tokens of its row up to itself, within the window."""
        assert self.cache.lengths == self.cache.offset.tolist() == list(map(len, self.rows))
        for i, row in enumerate(self.rows):
            for j in range(n):
                seen = mask[i, 0, j].tolist()
                position = len(row) - n + j + 1
                first = 0 if self.window is None else max(0, position - self.window)
                for array, sign in ((keys, 1), (values, -1)):
                    column = array[i, 0, :, 0].tolist()
                    held = [sign * v for v, shown in zip(column, seen, strict=True) if shown]
                    assert held == row[first:position], (i, j)


def arrays(rows: list[list[float]]) -> tuple[mx.array, mx.array]:
    """Keys and values [rows, 1, tokens, width] that name their token."""
    keys = mx.array(rows)[:, None, :, None]
    return mx.repeat(keys, 2, axis=-1), -mx.repeat(keys, 3, axis=-1)


@pytest.mark.parametrize("window", [None, 16, 100])
@pytest.mark.parametrize("seed", few(range(4), 3))
def test_rows_behave_as_lists(window: int | None, seed: int) -> None:
    life = Model(window, random.Random(f"{window} {seed}"))
    life.join()
    acts = [life.write] * 8 + [life.take_out, life.keep, life.join]
    for _ in range(60):
        if len(life.rows) < 6:
            life.rng.choice(acts)()
        else:
            life.keep()


@pytest.mark.parametrize("window", [None, 16])
def test_rows_that_lag_sixty_tokens_behind_wrap_around(window: int | None) -> None:
    """Row 0 accepts 20 tokens a pass and row 1 one, until the buffer was laid out several times."""
    life = Model(window, random.Random(3))
    rows = [life.single() for _ in range(2)]
    life.cache = RaggedKVCache.merge([cache for _, cache in rows])
    life.rows = [row for row, _ in rows]
    for _ in range(60):
        safe = [len(row) for row in life.rows]
        new = [life.fresh(20) for _ in life.rows]
        mask = life.cache.make_mask(20, return_array=True)
        keys, values = life.cache.update_and_fetch(*arrays(new))
        life.rows = [[*row, *more] for row, more in zip(life.rows, new, strict=True)]
        life.compare(keys, values, mask, 20)
        life.roll_back(1, safe[1] + 1)
        life.take_out()


@pytest.mark.parametrize("window", [None, 8])
def test_what_is_behind_the_end_of_a_row_changes_nothing(window: int | None) -> None:
    """Attention over columns that hold garbage behind each row's end equals that over zeros."""
    results = []
    for garbage in (0.0, GARBAGE):
        cache: Any = RaggedKVCache([0, 0, 0], window)
        cache.update_and_fetch(*noise(3, 30, 1))
        for row, length in enumerate((30, 12, 21)):
            if window is None or length > 30 - SPARE:
                cache.rewind(row, length)
        for row, end in enumerate(cache._ends):
            cache.keys[row, :, end:] = garbage
            cache.values[row, :, end:] = garbage
        mask = cache.make_mask(3)
        keys, values = cache.update_and_fetch(*noise(3, 3, 2))
        queries = mx.random.normal((3, 2, 3, 16), key=mx.random.key(3))
        attend = mx.fast.scaled_dot_product_attention
        results.append(attend(queries, keys, values, scale=0.25, mask=mask))
    assert mx.array_equal(*results).item()


@pytest.mark.parametrize("window", [None, 8])
def test_a_row_that_joins_keeps_nothing_of_the_one_before(window: int | None) -> None:
    """NaN of a request that failed would reach through the mask: 0 × NaN is NaN."""
    cache: Any = RaggedKVCache([0, 0, 0, 0], window)
    cache.update_and_fetch(*noise(4, 30, 1))
    for array in (cache.keys, cache.values):
        array[3] = mx.nan
    cache.filter([0, 1, 2])
    single: Any = KVCache() if window is None else RotatingKVCache(window)
    single.update_and_fetch(*noise(1, 5, 2))
    cache.extend(RaggedKVCache.merge([single]))
    mask = cache.make_mask(3)
    keys, values = cache.update_and_fetch(*noise(4, 3, 3))
    queries = mx.random.normal((4, 2, 3, 16), key=mx.random.key(4))
    attended = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.25, mask=mask)
    assert mx.isfinite(attended).all().item()


def noise(rows: int, tokens: int, seed: int) -> tuple[mx.array, mx.array]:
    keys, values = mx.random.normal((2, rows, 2, tokens, 16), key=mx.random.key(seed))
    return keys, values


@pytest.mark.parametrize("window", [None, 16])
def test_rows_of_equal_length_need_no_mask(window: int | None) -> None:
    cache = RaggedKVCache([0, 0], window)
    cache.update_and_fetch(*noise(2, 8, 1))
    assert cache.make_mask(1) is None
    assert cache.make_mask(4) == "causal"
    assert not isinstance(cache.make_mask(4, return_array=True), str)
    cache.rewind(1, 7)
    assert isinstance(cache.make_mask(1), mx.array)


def test_a_row_that_lacks_its_tokens_is_not_rolled_back() -> None:
    single = RotatingKVCache(16)
    single.update_and_fetch(*noise(1, 40, 1))
    for i in range(20):
        single.update_and_fetch(*noise(1, 1, i))
    cache = RaggedKVCache.merge([single])
    with pytest.raises(RewindError):
        cache.rewind(0, 58)
    with pytest.raises(RewindError):
        cache.rewind(0, 61)
    assert cache.lengths == [60]


def test_a_row_before_its_first_pass_joins() -> None:
    filled, empty = KVCache(), KVCache()
    filled.update_and_fetch(*noise(1, 5, 1))
    cache = RaggedKVCache.merge([filled, empty])
    assert cache.lengths == [5, 0]
    cache.update_and_fetch(*noise(2, 1, 2))
    assert cache.extract(1).keys.shape[2] == 1


def quantized_row(numbers: mx.array, bits: int) -> Any:
    """A quantized cache that has read `numbers` [2, heads, tokens, width], keys and values."""
    cache: Any = QuantizedKVCache(64, bits)
    for start, stop in ((0, 1), (1, 3), (3, numbers.shape[2])):
        if start < stop:
            cache.update_and_fetch(numbers[:1, :, start:stop], numbers[1:, :, start:stop])
    return cache


def test_a_row_that_comes_or_leaves_does_not_copy_the_others() -> None:
    def row(tokens: int) -> KVCache:
        cache = KVCache()
        cache.update_and_fetch(*[mx.ones((1, 4, tokens, 64))] * 2)
        return cache

    batch = RaggedKVCache.merge([row(500 + i) for i in range(8)])
    mx.eval(batch.state)
    for change in (
        lambda: batch.filter([0, 7, 2, 3, 4, 5, 6]),
        lambda: batch.filter(range(6)),
        lambda: batch.extend(RaggedKVCache.merge([row(300)])),
    ):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        change()
        batch.update_and_fetch(*[mx.ones((len(batch.lengths), 4, 1, 64))] * 2)
        mx.eval(batch.state)
        assert mx.get_peak_memory() - before < batch.nbytes / 2  # three rows of eight


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_rows_hold_the_bits_of_rows_alone(bits: int) -> None:
    """However they were written, joined, rolled back and taken out."""
    texts = [mx.random.normal((2, 2, 400, 64), key=mx.random.key(row)) for row in range(3)]
    lengths = [5, 120, 33]
    alone = [quantized_row(texts[row][:, :, : lengths[row]], bits) for row in range(3)]
    batch: Any = RaggedKVCache.merge(alone[:2])
    batch.extend(RaggedKVCache.merge(alone[2:]))
    for n, kept in ((1, 1), (7, 3), (200, 200), (1, 1)):
        parts = [text[:, :, at : at + n] for text, at in zip(texts, lengths, strict=True)]
        batch.update_and_fetch(
            *(mx.concatenate([part[i : i + 1] for part in parts]) for i in (0, 1))
        )
        for row in range(3):
            lengths[row] += kept
            batch.rewind(row, lengths[row])
    batch.filter([2, 0])
    for index, row in enumerate((2, 0)):
        held = batch.extract(index)
        wanted = quantized_row(texts[row][:, :, : lengths[row]], bits)
        assert (held.offset, held.bits, held.group_size) == (lengths[row], bits, 64)
        pairs = zip((*held.keys, *held.values), (*wanted.keys, *wanted.values), strict=True)
        for array, other in pairs:
            assert mx.array_equal(array, other[..., : lengths[row], :])
