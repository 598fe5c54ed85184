"""What passes are expected to cost on a chip, and that measurements replace it."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx.engine.build import build_loop
from omlx.engine.speculation.chip_costs import (
    BLOCK,
    LayerWeights,
    expected_costs,
    layer_weights,
    relative_costs,
)
from omlx.engine.speculation.config import CONFIG
from omlx.engine.speculation.cost_model import PLAIN, CostModel, LatencyTable
from tests import zoo
from tests.engine.harness import LIMITS, model

CHIPS = [f"applegpu_g{generation}{kind}" for generation in range(13, 18) for kind in "gsd"]
LARGE = LayerWeights(5120, 17408, 50_000_000, 4)
SMALL = LayerWeights(2048, 2048, 2_000_000, 4)
FORMS = {
    "4 bit": LARGE,
    "2 bit": LayerWeights(5120, 17408, 25_000_000, 2),
    "mxfp4": LayerWeights(5120, 17408, 50_000_000, 4, "mxfp4"),
    "bfloat16": LayerWeights(5120, 17408, 178_000_000),
    "experts": LayerWeights(2048, 768, 100_000_000, 4, experts=True),
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("form", FORMS)
def test_a_wider_pass_costs_more_than_one_token_and_never_less_than_a_narrower_one(
    chip: str, form: str
) -> None:
    costs = relative_costs(chip, [FORMS[form]])
    assert costs(1) == 1.0
    widths = [costs(width) for width in range(1, CONFIG.widest_window + 1)]
    assert all(below <= above for below, above in pairwise(widths))
    assert 1.0 < costs(5) <= 5.0


@pytest.mark.parametrize("architecture", ["", "x86_64", "air64_v26", "applegpu_g12p", "sm_90"])
def test_nothing_is_expected_of_other_devices(architecture: str) -> None:
    assert relative_costs(architecture, [LARGE]) is None


def test_nothing_is_expected_of_a_model_without_linear_layers() -> None:
    assert relative_costs("applegpu_g16s", []) is None


@pytest.mark.parametrize(
    ("chip", "layer", "limit"),
    [
        ("applegpu_g13s", LARGE, 6),
        ("applegpu_g14g", LayerWeights(4096, 4096, 1, 8), 10),
        ("applegpu_g14g", LayerWeights(2048, 4096, 1, 8), 10),
        ("applegpu_g13g", SMALL, 14),
        ("applegpu_g13d", LARGE, 12),
    ],
)
def test_early_chips_read_the_weights_for_each_row_up_to_a_matrix_product(
    chip: str, layer: LayerWeights, limit: int
) -> None:
    costs = relative_costs(chip, [layer])
    assert [costs(width) for width in range(1, limit + 1)] == list(range(1, limit + 1))
    assert costs(BLOCK) == limit
    assert costs(BLOCK + 1) == 2 * limit


def test_later_chips_read_the_weights_once_for_several_rows() -> None:
    early, late, newest = (relative_costs(f"applegpu_g{n}s", [LARGE]) for n in (14, 16, 17))
    for width in (3, 4, 5):
        assert newest(width) <= late(width) < 0.52 * early(width)


def test_layers_count_by_their_bytes() -> None:
    costs = relative_costs("applegpu_g13s", [LARGE, SMALL])
    share = LARGE.nbytes / (LARGE.nbytes + SMALL.nbytes)
    assert costs(10) == pytest.approx(6 * share + 10 * (1 - share))


def test_sizes_of_layers_are_those_before_they_were_quantized() -> None:
    plain = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64, bias=False))
    assert set(layer_weights(plain)) == {
        LayerWeights(128, 256, 4 * 256 * 129),
        LayerWeights(256, 64, 4 * 256 * 64),
    }
    nn.quantize(plain, group_size=64, bits=4)
    sizes = {(layer.inputs, layer.outputs, layer.bits) for layer in layer_weights(plain)}
    assert sizes == {(128, 256, 4), (256, 64, 4)}


@pytest.mark.parametrize(("name", "experts"), [("llama", False), ("qwen3_moe", True)])
def test_layers_of_experts_are_told_apart(name: str, experts: bool) -> None:
    target = model(name)
    assert any(layer.experts for layer in layer_weights(target)) is experts


def test_a_cpu_expects_nothing() -> None:
    assert mx.default_device().type == mx.DeviceType.cpu
    assert expected_costs(model("llama")) is None
    loop = build_loop(model("llama"), zoo.VOCAB_SIZE, LIMITS)
    assert loop.cost_model.target.expected is None


def linear(width: int) -> float:
    return float(width)


def test_an_unmeasured_width_costs_what_the_chip_is_expected_to_take() -> None:
    table = LatencyTable(expected=linear)
    for width in (PLAIN, 1):
        table.learn(width, 1, 0.02)
    assert table.seconds(4, 1) == pytest.approx(0.08)
    assert LatencyTable.from_json(table.to_json()).seconds(4, 1) == pytest.approx(
        0.02 * (1 + 3 * CONFIG.unknown_slope)
    )


def test_a_prompt_bounds_what_is_expected() -> None:
    table = LatencyTable(expected=linear)
    table.learn(1, 1, 0.02)
    table.learn(128, 100, 0.1)
    assert table.seconds(4, 1) == pytest.approx(0.08)
    assert table.seconds(64, 1) == pytest.approx(0.1)


def test_a_measured_width_replaces_what_is_expected() -> None:
    table = LatencyTable(expected=linear)
    for width, seconds in ((1, 0.02), (5, 0.03)):
        for _ in range(CONFIG.min_samples):
            table.learn(width, 1, seconds)
    costs = CostModel(table)
    assert costs.verify(5, 1) == pytest.approx(0.03)
    assert costs.verify(9, 1) == pytest.approx(0.04)
