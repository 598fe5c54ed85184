"""Pieces that come from disk, once the cache that they restore has been assembled."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from omlx.engine.piece import Piece
from omlx.engine.prefix.payload import Payload, Payloads, assemble

ROWS = 64


def make_cache() -> list[KVCache]:
    return [KVCache()]


def test_what_was_read_is_saved_itself_and_not_copied_once_more() -> None:
    keys, values = mx.random.normal((2, 1, 1, ROWS, 8))
    read = Payload(Piece(0, "rows", 0, ROWS), ((keys, values),))
    cache, piece = assemble(make_cache(), [read], ROWS, 2 * ROWS), Piece(7, "rows", 0, ROWS)
    kept = Payloads(make_cache)
    kept.keep(cache, [piece], [read])
    assert kept[7].arrays is read.arrays
    cache[0].update_and_fetch(mx.ones((1, 1, 1, 8)), mx.ones((1, 1, 1, 8)))
    again = kept.build([7], ROWS, ROWS)
    assert mx.array_equal(again[0].keys[..., :ROWS, :], keys)


def test_a_view_of_more_rows_and_other_rows_are_copied() -> None:
    keys, values = mx.random.normal((2, 1, 1, ROWS, 8))
    whole = Payload(Piece(0, "rows", 0, ROWS), ((keys, values),))
    cache = assemble(make_cache(), [whole], ROWS, 2 * ROWS)
    kept = Payloads(make_cache)
    kept.keep(cache, [Piece(7, "rows", 0, ROWS)], [replace(whole, whole=False)])
    kept.keep(cache, [Piece(8, "rows", 0, 10)], [whole])
    for id, rows in ((7, ROWS), (8, 10)):
        assert kept[id].arrays is not whole.arrays
        assert mx.array_equal(kept[id].arrays[0][0], keys[..., :rows, :])
