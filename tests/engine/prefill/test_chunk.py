"""How long the next pass over a prompt may be."""

from __future__ import annotations

from random import Random

import pytest

from omlx.engine.step.prefill import (
    FIRST,
    FLOOR,
    GPU_PAIRS,
    RECOVERY,
    UNLEARNED,
    Activations,
    Kernels,
    PassShape,
    PrefillChunk,
)
from omlx.engine.types import Limits

SHAPE = PassShape(4, 2, 64, 64, token_floats=640, itemsize=4)
LIMITS = Limits(1 << 20)


def chunk(
    room: int | None = None, kernels: Kernels = "none", shape: PassShape | None = SHAPE
) -> PrefillChunk:
    return PrefillChunk(LIMITS, Activations(shape, kernels), lambda wanted: room)


def learned(room: int, kernels: Kernels = "none") -> PrefillChunk:
    """One whose longest passes have been measured, and took what was expected."""
    known = chunk(room, kernels)
    for queries in (256, 1024, 2048):
        known.activations.observe(
            queries, queries, known.activations.estimate(queries, queries) or 0
        )
    return known


def test_without_a_limit_passes_are_as_long_as_configured() -> None:
    free = chunk()
    assert free.fit_alone(0, 5000) == 2048
    assert free.fit_alone(1 << 19, 300) == 300
    assert not free.waits(0, 5000)


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_takes_no_more_than_the_room_and_about_as_much(seed: int) -> None:
    random = Random(seed)
    room = random.randrange(1 << 22, 1 << 28)
    start, wanted = random.randrange(1 << 15), random.randrange(FLOOR, 4096)
    known = learned(room)
    tokens = known.fit_alone(start, wanted)
    taken = known.activations.estimate(tokens, start + tokens)
    assert taken <= room or tokens == FLOOR
    if tokens < min(wanted, 2048):
        more = known.activations.estimate(tokens + FLOOR, start + tokens + FLOOR)
        assert more > room


def test_a_pass_is_never_shorter_than_what_is_sensible() -> None:
    full = learned(0)
    assert full.fit_alone(10_000, 2000) == FLOOR
    assert full.fit_alone(10_000, 5) == 5
    assert full.min_activations(10_000) == full.activations.estimate(FLOOR, 10_000)
    assert full.min_activations(3) == full.activations.estimate(3, 3)
    assert full.min_activations(0) == 0


def test_passes_of_one_step_share_the_room() -> None:
    known = learned(80 << 20)
    first = known.fit_alone(4000, 256)
    second = known.fit(4000, 2000)
    assert first == 256
    assert 0 < second < known.fit_alone(4000, 2000)
    left = learned(1 << 20)
    assert left.fit_alone(4000, 256) == FLOOR
    assert left.fit(4000, 256) == 0


def test_logits_of_a_prompt_count() -> None:
    known = learned(40 << 20)
    assert known.fit(0, 256) == 256
    known.begin()
    assert known.fit(0, 256, token_bytes=1 << 20) == FLOOR


def test_before_anything_was_measured_passes_are_short_where_memory_is() -> None:
    fresh = chunk(100 << 20)
    assert fresh.fit_alone(0, 2048) == UNLEARNED
    assert fresh.waits(0, 2048)
    fresh.observe(256, 256, 0.1, fresh.activations.estimate(256, 256))
    assert fresh.fit_alone(256, 2048) == 4 * 256
    roomy = chunk(100 << 30)
    assert roomy.fit_alone(0, 2048) == 2048
    assert not roomy.waits(0, 2048)


def test_a_model_of_unknown_heads_begins_with_a_short_pass() -> None:
    unknown = chunk(100 << 30, shape=None)
    assert unknown.fit_alone(0, 2048) == FIRST
    assert unknown.waits(0, 2048)
    unknown.observe(FIRST, FIRST, 0.1, 1 << 20)
    assert unknown.fit_alone(FIRST, 2048) == 2048


def test_a_pass_waits_for_the_one_in_flight_where_there_is_no_room_for_both() -> None:
    known = learned(64 << 20)
    needed = known.activations.estimate(1024, 1024) or 0
    assert known.activations.estimate(1024, 1024) == needed
    assert not PrefillChunk(LIMITS, known.activations, lambda wanted: 2 * needed).waits(0, 1024)
    assert PrefillChunk(LIMITS, known.activations, lambda wanted: 2 * needed - 2).waits(0, 1024)


@pytest.mark.parametrize(
    ("start", "tokens"), [(0, 2048), (30_000, 2048), (131_072 - 512, 512), (1 << 20, 63)]
)
def test_a_gpu_computes_a_bounded_number_of_pairs_at_once(start: int, tokens: int) -> None:
    for room in (None, 1 << 50):
        gpu = chunk(room, "metal")
        assert gpu.fit_alone(start, 4096) == tokens
        assert tokens * (start + tokens) <= GPU_PAIRS
    assert chunk(None).fit_alone(start, 4096) == 2048


def test_slow_passes_on_a_gpu_become_shorter_and_short_ones_longer() -> None:
    gpu = chunk(None, "metal")
    for seconds, tokens in [(4, 2048), (6, 1024), (6, 512), (1, 1024), (9, 512), (99, 256)]:
        gpu.observe(gpu.fit_alone(0, 4096), 4096, seconds)
        assert gpu.tokens == tokens
    for _ in range(9):
        gpu.observe(gpu.fit_alone(0, 4096), 4096, 99)
    assert gpu.tokens == FIRST
    cpu = chunk(None)
    cpu.observe(2048, 2048, 99)
    assert cpu.tokens == 2048


def test_an_error_of_memory_halves_passes_until_many_have_gone_well() -> None:
    failing = chunk(None)
    assert failing.fit_alone(0, 4096) == 2048
    assert failing.shrink()
    assert failing.fit_alone(0, 4096) == 1024
    for _ in range(RECOVERY):
        assert failing.fit_alone(0, 4096) == 1024
        failing.observe(1024, 4096, 0.1)
    assert failing.fit_alone(0, 4096) == 2048
    lengths = []
    while failing.shrink():
        lengths.append(failing.fit_alone(0, 4096))
    assert lengths == [1024, 512, 256, 128, 64, FLOOR]
    assert failing.fit_alone(0, 4096) == FLOOR
