"""The memory footprint, on the machine that runs the tests."""

from __future__ import annotations

import mlx.core as mx

from omlx.models.pool.footprint import (
    default_limit_bytes,
    footprint,
    machine_bytes,
    release_memory,
    used_bytes,
)

SIZE = 128 << 20


def test_used_memory_follows_arrays() -> None:
    release_memory()
    before = used_bytes()
    held = mx.arange(SIZE // 4, dtype=mx.float32)
    mx.eval(held)
    assert used_bytes() - before > 0.9 * SIZE
    del held
    release_memory()
    assert used_bytes() - before < 0.2 * SIZE


def test_used_memory_lies_between_that_of_mlx_and_of_the_machine() -> None:
    assert mx.get_active_memory() <= used_bytes() <= machine_bytes()
    assert 0 < footprint() <= machine_bytes()


def test_the_default_limit_leaves_memory_to_other_programs() -> None:
    assert 0 < default_limit_bytes() <= 0.75 * machine_bytes()
