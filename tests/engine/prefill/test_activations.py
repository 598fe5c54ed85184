"""Which attention keeps scores, what they take, and what peaks that were measured add to that."""

from __future__ import annotations

from random import Random

import pytest

from omlx.engine.step.prefill import (
    Activations,
    Kernels,
    PassShape,
    attention_bytes,
    has_fused_kernel,
)
from omlx.models.catalog.config import pass_shape

SHAPE = PassShape(32, 8, 128, 128, token_floats=20_000, itemsize=2)
WIDE = PassShape(24, 4, 256, 256, token_floats=20_000, itemsize=2)


@pytest.mark.parametrize(
    ("queries", "group", "dims", "metal"),
    [
        (1, 8, (128, 128), True),
        (4, 8, (128, 128), True),
        (5, 8, (128, 128), False),
        (8, 8, (64, 64), False),
        (8, 4, (96, 96), True),
        (2, 16, (256, 256), True),
        (3, 16, (256, 256), False),
        (8, 1, (192, 128), True),
        (8, 1, (192, 192), False),
        (1, 1, (80, 80), False),
        (9, 8, (64, 64), True),
        (9, 16, (72, 72), True),
        (512, 8, (80, 80), True),
        (512, 8, (96, 96), True),
        (2048, 8, (128, 128), True),
        (2048, 8, (192, 192), False),
        (2048, 8, (192, 128), False),
        (2048, 8, (256, 256), False),
    ],
)
def test_which_kernels_are_fused(
    queries: int, group: int, dims: tuple[int, int], metal: bool
) -> None:
    assert has_fused_kernel(queries, group, *dims, "metal") == metal
    assert not has_fused_kernel(queries, group, *dims, "none")


@pytest.mark.parametrize(("queries", "fused"), [(512, False), (1023, False), (1024, True)])
def test_matrix_units_fuse_long_passes_over_wide_heads(queries: int, fused: bool) -> None:
    assert has_fused_kernel(queries, 8, 256, 256, "matrix units") == fused
    assert has_fused_kernel(queries, 8, 128, 128, "matrix units")
    assert not has_fused_kernel(queries, 8, 192, 192, "matrix units")


def test_scores_and_their_softmax_count_unless_attention_is_fused() -> None:
    output = 4096 * 24 * 256 * 2
    fused = attention_bytes(4096, 32_768, 24, 256, 2, fused=True)
    assert fused == output
    # 4,096 queries at 32,768 in 16 bits took 8.98 GB on a Mac: 1.4 of the scores.
    unfused = attention_bytes(4096, 32_768, 24, 256, 2, fused=False)
    assert unfused - output == 2 * 24 * 4096 * 32_768 * 2
    assert 8.98e9 < unfused < 1.5 * 8.98e9


def test_a_pass_without_a_fused_kernel_grows_with_its_context() -> None:
    fused, unfused = Activations(SHAPE, "metal"), Activations(WIDE, "metal")
    least, most = fused.estimate(2048, 2048), fused.estimate(2048, 131_072)
    assert most - least == (131_072 - 2048) * 8 * 256 * 2, "a layer's cache is copied as it grows"
    short, long = unfused.estimate(2048, 2048), unfused.estimate(2048, 131_072)
    assert long > 18e9
    assert long > 30 * short


def test_attention_that_reaches_back_a_window_stops_growing() -> None:
    sliding = Activations(WIDE, "metal", window=1024)
    assert sliding.estimate(512, 4096) == sliding.estimate(512, 131_072)


def test_nothing_is_estimated_without_heads_and_peaks() -> None:
    unknown = Activations()
    assert unknown.estimate(128, 128) is None
    unknown.observe(128, 128, 1000)
    assert unknown.estimate(128, 128) == 1000
    assert unknown.estimate(256, 512) == 8000
    assert unknown.estimate(64, 64) == 1000


def test_a_smaller_peak_than_expected_lets_passes_grow_and_a_greater_one_shortens_them() -> None:
    low, high = Activations(WIDE, "metal"), Activations(WIDE, "metal")
    expected = low.estimate(512, 8192)
    low.observe(512, 8192, expected // 2)
    high.observe(512, 8192, 3 * expected)
    assert low.estimate(512, 8192) == expected // 2
    assert high.estimate(512, 8192) == pytest.approx(3 * expected, rel=1e-6)
    before = Activations(WIDE, "metal").estimate(2048, 32_768)
    after = high.estimate(2048, 32_768)
    assert after == pytest.approx(3 * before, rel=1e-6)


def test_short_passes_teach_nothing() -> None:
    activations = Activations(WIDE, "metal")
    before = activations.estimate(2048, 2048)
    activations.observe(16, 2048, 1 << 40)
    activations.observe(512, 2048, -5)
    assert activations.estimate(2048, 2048) == before


def test_what_a_fused_pass_took_says_nothing_of_shorter_ones_that_are_not() -> None:
    activations = Activations(WIDE, "matrix units")
    before = activations.estimate(512, 32_768)
    activations.observe(2048, 32_768, 1 << 20)
    assert activations.estimate(512, 32_768) == before
    assert activations.estimate(2048, 32_768) == 1 << 20


@pytest.mark.parametrize("kernels", ["none", "metal"])
@pytest.mark.parametrize("seed", range(5))
def test_estimates_bound_every_pass_that_is_linear_in_tokens_and_pairs(
    kernels: Kernels, seed: int
) -> None:
    """Whatever a token and a pair really take, once passes have been measured."""
    random = Random(seed)
    token, pair = random.randrange(1, 1 << 22), random.randrange(1, 1 << 9)

    def real(queries: int, context: int) -> int:
        return token * queries + pair * queries * context

    learned = Activations(None, kernels)
    for _ in range(20):
        queries = random.randrange(64, 2048)
        context = queries + random.randrange(1 << 16)
        learned.observe(queries, context, real(queries, context))
        for _ in range(20):
            asked = random.randrange(1, 4096)
            at = asked + random.randrange(1 << 17)
            estimate = learned.estimate(asked, at)
            assert estimate >= real(asked, at)


def config(**more: object) -> dict[str, object]:
    return {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 6144, **more}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (config(), (16, 16, 128, 128, 2048 + 6144)),
        (config(num_key_value_heads=2, head_dim=256), (16, 2, 256, 256, 4096 + 6144)),
        ({"text_config": config(num_key_value_heads=8)}, (16, 8, 128, 128, 2048 + 6144)),
        (config(head_dim=256, global_head_dim=512), (16, 16, 512, 512, 8192 + 6144)),
        (
            config(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
            (16, 16, 192, 128, 3072 + 6144),
        ),
        (
            config(moe_intermediate_size=768, num_experts_per_tok=10),
            (16, 16, 128, 128, 2048 + 7680),
        ),
        (config(intermediate_size=[6144, 9000]), (16, 16, 128, 128, 2048 + 9000)),
        ({"n_head": 12, "n_embd": 768}, (12, 12, 64, 64, 768 + 3072)),
    ],
)
def test_heads_are_read_from_a_config(given: dict[str, object], expected: tuple[int, ...]) -> None:
    shape = pass_shape(given, 2)
    found = shape.query_heads, shape.kv_heads, shape.head_dim, shape.value_dim, shape.token_floats
    assert found == expected


@pytest.mark.parametrize(
    "broken", [{}, {"hidden_size": 64}, config(num_attention_heads="16"), config(hidden_size=None)]
)
def test_a_config_without_heads_has_no_shape(broken: dict[str, object]) -> None:
    assert pass_shape(broken, 2) is None
