"""Every row of the table in omlx/engine/device/rewind.py: a rolled back cache equals a new one."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from omlx.engine.device.rewind import length_of, mark, rewind, traits, unsupported
from omlx.errors import RewindError
from tests.refusals import refused

WIDTH = 32


def feed(cache: Any, ids: range) -> mx.array:
    """Write rows that spell `ids`; returns what attention would read, as ids."""
    rows = mx.broadcast_to(
        mx.array(list(ids), mx.float32)[None, None, :, None], (1, 1, len(ids), WIDTH)
    )
    if isinstance(cache, ChunkedKVCache):
        cache.maybe_trim_front()
    keys, _ = cache.update_and_fetch(rows, rows)
    if isinstance(cache, QuantizedKVCache):
        keys = mx.dequantize(*keys, group_size=cache.group_size, bits=cache.bits)
    return mx.round(keys[0, 0, :, 0]).astype(mx.int32)


def step(cache: Any, ids: range) -> None:
    """Write row by row."""
    for i in ids:
        feed(cache, range(i, i + 1))


def read(cache: Any, ids: range) -> list[int]:
    return feed(cache, ids).tolist()


@pytest.mark.parametrize("back", [1, 4, 9])
@pytest.mark.parametrize(
    "cache",
    [
        KVCache,
        lambda: QuantizedKVCache(group_size=32, bits=8),
        lambda: ChunkedKVCache(64),
        ConcatenateKVCache,
    ],
    ids=["kv", "quantized", "chunked", "concatenate"],
)
def test_caches_that_trim_hold_exactly_the_rest(cache: Any, back: int) -> None:
    layer = cache()
    feed(layer, range(6))
    feed(layer, range(6, 10))
    assert rewind([layer], 10, 10 - back) == 10 - back
    assert length_of([layer]) == 10 - back
    assert read(layer, range(50, 53)) == [*range(10 - back), 50, 51, 52]


def test_the_trim_of_a_concatenate_cache_is_not_enough() -> None:
    """The reason for slicing; if this fails, upstream has mended it."""
    layer = ConcatenateKVCache()
    feed(layer, range(5))
    layer.trim(2)
    assert len(read(layer, range(9, 10))) == 6


def test_a_chunked_cache_goes_back_into_a_chunk_only_while_all_of_it_is_there() -> None:
    layer = ChunkedKVCache(8)
    step(layer, range(13))
    assert layer.start_position == 4
    with pytest.raises(RewindError):
        rewind([layer], 13, 7)
    assert layer.offset == 13
    assert rewind([layer], 13, 8) == 8
    assert read(layer, range(50, 51)) == [*range(4, 8), 50]


def test_a_chunked_cache_returns_to_a_fresh_mark_across_its_border() -> None:
    layer = ChunkedKVCache(8)
    feed(layer, range(7))
    place = mark([layer], 7, fresh=True)
    step(layer, range(7, 17))
    assert rewind([layer], 17, 7, [place]) == 7
    assert read(layer, range(50, 51)) == [*range(7), 50]


def test_a_sliding_window_that_has_not_wrapped_goes_back_anywhere() -> None:
    for step in (range(1), range(6)):
        layer = RotatingKVCache(max_size=8)
        for i in range(6) if len(step) == 1 else [0]:
            feed(layer, range(i, i + len(step)))
        assert rewind([layer], 6, 2) == 2
        assert read(layer, range(50, 52)) == [0, 1, 50, 51]


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("accepted", range(1, 5))
def test_a_wrapped_window_goes_back_within_the_newest_pass(accepted: int, keep: int) -> None:
    layer, reference = (RotatingKVCache(max_size=8, keep=keep) for _ in range(2))
    step(layer, range(11))
    feed(layer, range(11, 16))
    assert rewind([layer], 16, 11 + accepted) == 11 + accepted
    step(reference, range(11 + accepted))
    for i in range(50, 60):
        assert sorted(read(layer, range(i, i + 1))) == sorted(read(reference, range(i, i + 1)))


def test_a_wrapped_window_refuses_to_lose_its_oldest_row() -> None:
    layer = RotatingKVCache(max_size=8)
    feed(layer, range(12))
    feed(layer, range(12, 16))
    # 7 rows would be left, and the next one-token pass would read one too few.
    with pytest.raises(RewindError):
        rewind([layer], 16, 12)
    assert layer.offset == 16
    assert rewind([layer], 16, 13) == 13
    assert sorted(read(layer, range(50, 51))) == [*range(6, 13), 50]


def test_a_one_token_pass_over_a_wrapped_window_cannot_be_taken_back_without_a_mark() -> None:
    layer = RotatingKVCache(max_size=8)
    step(layer, range(12))
    place = mark([layer], 12, fresh=True)
    feed(layer, range(12, 13))
    with pytest.raises(RewindError):
        rewind([layer], 13, 12)
    assert rewind([layer], 13, 12, [place]) == 12
    assert sorted(read(layer, range(50, 51))) == [*range(5, 12), 50]


def test_a_whole_window_taken_back_by_a_plain_mark_is_exact() -> None:
    """Recurrent and sliding layers together; passes over several tokens make new arrays."""
    layer, state = RotatingKVCache(max_size=8), ArraysCache(1)
    step(layer, range(12))
    state[0] = mx.array([12])
    place = mark([layer, state], 12)
    feed(layer, range(12, 15))
    state[0] = mx.array([15])
    assert rewind([layer, state], 15, 14, [place]) == 12
    assert state[0].item() == 12
    assert sorted(read(layer, range(50, 51))) == [*range(5, 12), 50]


def test_recurrent_state_returns_to_the_newest_mark_at_or_below() -> None:
    state, keys = ArraysCache(2), KVCache()
    marks = []
    for length in (0, 4, 8):
        state[0], state[1] = mx.array([length]), None
        marks.append(mark([state, keys], length))
        feed(keys, range(length, length + 4))
    assert rewind([state, keys], 12, 7, marks) == 4
    assert state[0].item() == 4
    assert keys.offset == 4


def test_recurrent_state_without_a_mark_stays_and_raises() -> None:
    state, keys = ArraysCache(1), KVCache()
    state[0] = mx.array([1])
    feed(keys, range(4))
    with refused(RewindError, "rewind.failed"):
        rewind([state, keys], 4, 3, [mark([state, keys], 4)])
    assert keys.offset == 4


def test_a_mark_survives_what_advances_in_place() -> None:
    state = ArraysCache(1, left_padding=[2])
    state.lengths = mx.array([9])
    place = mark([state], 0)
    state.advance(3)
    mx.eval(state.lengths, state.left_padding)
    for _ in range(2):
        rewind([state], 3, 0, [place])
        assert (state.lengths.item(), state.left_padding.item()) == (9, 2)
        state.advance(1)


def test_the_parts_of_a_list_go_back_together() -> None:
    keys, state = KVCache(), ArraysCache(1)
    layer = CacheList(keys, state)
    state[0] = mx.array([0])
    place = mark([layer], 0)
    feed(keys, range(3))
    state[0] = mx.array([3])
    assert rewind([layer], 3, 2, [place]) == 0
    assert (keys.offset, state[0].item()) == (0, 0)
    assert rewind([CacheList(filled(5), filled(5))], 5, 3) == 3


def test_going_nowhere_needs_no_way_back() -> None:
    assert rewind([ArraysCache(1)], 7, 7) == 7


def test_traits_name_what_a_cache_is_made_of() -> None:
    class Strange(KVCache):
        pass

    assert unsupported([KVCache(), Strange(), CacheList(ArraysCache(1), KVCache())]) == ["Strange"]
    mixed = traits([CacheList(RotatingKVCache(32), ArraysCache(1)), RotatingKVCache(16)])
    assert mixed.recurrent
    assert mixed.sliding_window == 16
    assert traits([KVCache()]).sliding_window is None
    assert traits([ChunkedKVCache(8), KVCache()]).sliding_window == 8


def filled(n: int) -> KVCache:
    layer = KVCache()
    feed(layer, range(n))
    return layer
