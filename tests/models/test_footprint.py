"""The memory footprint, on the machine that runs the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.errors import ConfigError
from omlx.machine import machine_bytes
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.footprint import (
    SLACK,
    Trimmer,
    bound_mlx,
    default_limit_bytes,
    device,
    footprint,
    release_memory,
    taken_bytes,
    used_bytes,
    weight_bytes,
    wire,
)
from tests.refusals import refused

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


@pytest.mark.parametrize(
    ("stored", "dtype", "quantization", "factor"),
    [
        ("bfloat16", "auto", None, 2 if device() == "cpu" else 1),
        ("bfloat16", "float32", None, 2),
        ("bfloat16", "bfloat16", None, 1),
        ("float32", "auto", None, 1),
        (None, "float32", None, 2),
        ("bfloat16", "float32", "4-bit", 1),
    ],
)
def test_weights_take_the_memory_of_the_dtype_in_use(
    stored: str | None, dtype: str, quantization: str | None, factor: int, tmp_path: Path
) -> None:
    config = {} if stored is None else {"torch_dtype": stored}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    entry = ModelEntry("m", tmp_path, "home", size_bytes=100, quantization=quantization)
    assert weight_bytes(entry, dtype) == 100 * factor


def test_used_memory_lies_between_that_of_mlx_and_of_the_machine() -> None:
    assert mx.get_active_memory() <= used_bytes() <= machine_bytes()
    assert 0 < footprint() <= machine_bytes()


def test_the_budget_counts_more_than_what_is_in_use() -> None:
    release_memory()
    assert abs(taken_bytes() - used_bytes() - SLACK) < SLACK // 2


def test_the_default_limit_leaves_memory_to_other_programs() -> None:
    assert 0 < default_limit_bytes() <= 0.75 * machine_bytes()


def test_mlx_is_told_a_limit_and_keeps_an_eighth_of_it_at_most_for_reuse() -> None:
    limits = mx.set_memory_limit(1 << 40), mx.set_cache_limit(1 << 40)
    try:
        bound_mlx(64 << 30)
        told, kept = mx.set_memory_limit(1 << 40), mx.set_cache_limit(1 << 40)
        assert 32 << 30 <= told <= 64 << 30
        assert kept == 8 << 30
    finally:
        mx.set_memory_limit(limits[0])
        mx.set_cache_limit(limits[1])


def test_nothing_is_wired_unless_it_is_asked_for() -> None:
    wire(None, most=8 << 30)
    wire(0, most=8 << 30)


def test_more_wired_memory_than_the_system_allows_is_refused_with_what_it_allows() -> None:
    says = "iogpu.wired_limit_mb=9216"
    with refused(ConfigError, "memory.wired", says, wired=9 << 10, most=8 << 10):
        wire(9 << 30, most=8 << 30)


@pytest.mark.skipif(
    "max_recommended_working_set_size" in mx.device_info(), reason="there is a GPU to wire for"
)
def test_without_a_gpu_a_wired_limit_is_refused() -> None:
    with refused(ConfigError, "memory.wired_no_gpu"):
        wire(1 << 30)


LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only there freed memory stays with the process"
)
FREED = """
from omlx.machine import footprint, set_up_allocator
set_up_allocator()
first = b"x" * (20 << 20)
del first
before = footprint()
large, small = [], []
for _ in range(50):
    large.append(b"x" * (1 << 20))
    small.append(b"x" * 10_000)
large.clear()
print(footprint() - before)
"""


@LINUX
def test_large_blocks_between_small_ones_are_returned_when_they_are_freed() -> None:
    command = [sys.executable, "-c", FREED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10 << 20


@LINUX
def test_freed_memory_is_returned_at_most_once_per_interval() -> None:
    now = [10.0]
    trim = Trimmer(lambda: now[0])
    trim()

    def leave_freed_memory() -> list[bytes]:
        """Fill the heap, and return every tenth object: they keep the others' memory in it."""
        pieces = [number.to_bytes() * 100_000 for number in range(1, 256)]
        return pieces[::10]

    kept = leave_freed_memory()
    held = footprint()
    trim()
    assert footprint() > held - (10 << 20)
    now[0] += 2 * Trimmer.INTERVAL_S
    trim()
    assert footprint() < held - (20 << 20)
    del kept
