"""Text models of mlx-vlm: rows take turns, prefixes are restored, nothing stays on modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from lab.probe.reference import TOLERANCE, Row, references
from lab.probe.rewinding import verify
from omlx.engine.device.batch_probe import batching_refusal, uneven_refusal
from omlx.engine.device.model import Recorded, cache_maker
from omlx.engine.device.payloads import Payloads, layout_of, uncacheable
from omlx.engine.device.rewind import leaves, rewind_refusal
from omlx.engine.piece import Piece
from omlx.engine.types import run_through
from omlx.models.library.borrow import Borrowed, module_of
from omlx.models.library.caches import RecordedStates
from omlx.models.library.choose import BORROWED, NEWER
from tests import lanes, zoo
from tests.lanes import few
from tests.zoo.borrowed import CONFIGS

pytestmark = pytest.mark.needs_extra
ALONE = {
    "deepseek_v4": "batch.off.no_merge",
    "glm5_next": "batch.off.no_merge",
    "inkling": "batch.off.probe",
    "longcat_flash_sparse": "batch.off.probe",
    "minimax_m3": "batch.off.no_merge",
    "qwen4_exp": "batch.off.no_merge",
}
"""Families whose rows run one after another, with the code of the reason."""


@pytest.fixture(params=zoo.BORROWED_CASES)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return built(request.param)


built = cache(zoo.build)


def test_every_served_family_is_in_the_zoo() -> None:
    proven = {str(config["model_type"]) for config in CONFIGS.values()}
    assert set(BORROWED.values()) == proven
    assert set(NEWER) <= proven


def attributes(model: nn.Module) -> Iterator[tuple[str, str, int]]:
    for path, module in model.named_modules():
        for name, value in [*vars(module).items(), *module.items()]:
            yield path, name, id(value)


def test_rows_of_other_lengths_take_turns_and_leave_nothing_on_modules(model: nn.Module) -> None:
    rows = [Row(model, tokens, seed) for seed, tokens in enumerate((33, 11, 22))]
    before = sorted(attributes(model))
    caches = [zoo.make_cache(model) for _ in rows]
    for turn in range(3):
        for row, live in zip(rows, caches, strict=True):
            third = len(row.tokens) // 3
            assert row.read(turn * third, (turn + 1) * third, live) <= TOLERANCE
    assert sorted(attributes(model)) == before


def test_the_wrapper_computes_what_the_language_model_does(model: Any) -> None:
    ids = mx.array([Row(model, 24, 0).tokens])
    own = model.language_model(ids, cache=zoo.make_cache(model)).logits
    assert mx.allclose(model(ids, cache=zoo.make_cache(model)), own, rtol=1e-5, atol=1e-5)


def test_short_first_passes_write_nothing_in_front_of_a_buffer(model: nn.Module) -> None:
    """There mlx keeps the size of a buffer, which it subtracts when the buffer is freed."""
    for tokens in range(1, 6):
        row = Row(model, 8, tokens)
        assert row.read(0, tokens, zoo.make_cache(model)) <= TOLERANCE
        assert mx.get_active_memory() < 1 << 40
    assert model(mx.array([[1, 2]]), cache=zoo.make_cache(model)).shape == (1, 2, zoo.VOCAB_SIZE)


def test_rejected_drafts_leave_the_cache(model: nn.Module) -> None:
    assert rewind_refusal(zoo.make_cache(model), model) is None
    result = verify(Row(model, 48, seed=3))
    assert result.gap <= TOLERANCE
    assert result.stepped + result.restored > 5


def test_recorded_states_step_back_within_a_short_pass() -> None:
    states = RecordedStates(3)  # the last entry is unused

    def read(tokens: mx.array) -> None:
        states.begin(tokens.shape[1])
        update(tokens)

    def update(tokens: mx.array) -> None:
        def add(before: mx.array | None, steps: int | None) -> tuple[mx.array, ...]:
            sums = mx.cumsum(tokens, axis=1) + (0 if before is None else before[:, None])
            return sums, sums[:, -1], *([] if steps is None else [sums[:, :steps]])

        window = mx.zeros((1, 2), tokens.dtype) if states.cache[1] is None else states.cache[1]
        states.update_recurrent(0, tokens.shape[1], add)
        states.update_window(1, mx.concatenate([window, tokens], axis=1), 2)

    read(mx.arange(1, 6)[None])
    assert states.records(5)
    states.step_back(2)
    assert [states.cache[0].tolist(), states.cache[1].tolist()] == [[6], [[2, 3]]]
    assert not states.records(1), "only the newest pass is recorded"
    read(mx.arange(4, 6)[None])
    states.step_back(2)
    assert [states.cache[0].tolist(), states.cache[1].tolist()] == [[6], [[2, 3]]]
    read(mx.arange(9)[None])
    assert not states.records(1), "a pass too long"
    read(mx.arange(2)[None])
    states.begin(0)
    assert not states.records(1), "a mark was put back"
    states.begin(3)
    for token in (7, 8, 9):
        update(mx.array([[token]]))
    states.step_back(1)
    assert [states.cache[0].tolist(), states.cache[1].tolist()] == [[58], [[7, 8]]]


def test_records_of_states_are_counted_and_reserved() -> None:
    model = built("qwen4_exp")
    layout, live = layout_of(model, cache_maker(model)), zoo.make_cache(model)
    for tokens in (16, Recorded.LONGEST):
        model(mx.zeros((1, tokens), mx.int32), cache=live)
    held = sum(leaf.nbytes for leaf in leaves(live) if isinstance(leaf, Recorded))
    assert 4 * layout.state_bytes < held <= layout.state_bytes + layout.record_bytes
    without = replace(layout, record_bytes=0)
    records = Recorded.LONGEST * layout.state_bytes
    assert layout.cache_bytes(64) == without.cache_bytes(64) + records
    assert repr(layout) == repr(without), "prefixes on disk are found by it"


@pytest.mark.parametrize("name", zoo.BORROWED_CASES)
def test_rows_share_a_batch_or_run_one_after_another_for_a_reason(name: str) -> None:
    model = built(name)
    make_cache = cache_maker(model)
    reason = run_through(batching_refusal(model, make_cache, zoo.VOCAB_SIZE))
    assert (None if reason is None else reason.code) == ALONE.get(name)
    if reason is None:
        assert run_through(uneven_refusal(model, make_cache, zoo.VOCAB_SIZE)) is None


@pytest.mark.parametrize("name", few(zoo.BORROWED_NAMES, "glm5_next"))
def test_a_restored_prefix_gives_the_logits_of_single_steps(name: str) -> None:
    model = built(name)
    make_cache = cache_maker(model)
    assert uncacheable(make_cache()) is None
    row, live, length = references(model)[0], make_cache(), 42
    row.read(0, length, live)
    layout = layout_of(model, make_cache)
    pieces = [Piece(1, "rows", 0, length)]
    if layout.window is not None:
        pieces.append(Piece(2, "window", length - layout.window, length))
    if layout.recurrent:
        pieces.append(Piece(3, "state", 0, length))
    kept = Payloads(make_cache)
    kept.keep(live, pieces)
    row.read(length, length + 9, live)  # written behind what was saved
    for _ in range(2):  # the first one writes into its own arrays
        restored = kept.build([piece.id for piece in pieces], length, 64)
        for token in range(length, length + 3):
            assert row.read(token, token + 1, restored) <= TOLERANCE
        assert row.read(length + 3, length + 9, restored) <= TOLERANCE


@pytest.mark.parametrize("chunk", few((300, 64, 37, 7), 37))
def test_pooled_entries_of_many_tokens_do_not_depend_on_chunks(chunk: int) -> None:
    length = 300 if lanes.slow else 150
    row = Row(built("deepseek_v4"), length, 0)  # its last layer but one pools 128 tokens
    live = zoo.make_cache(row.model)
    for start in range(0, length, chunk):
        assert row.read(start, min(length, start + chunk), live) <= TOLERANCE


WITHOUT_LARGE_PACKAGES = """
import sys
from importlib.machinery import PathFinder

LARGE = {"mlx_audio", "cv2", "pandas", "pyarrow", "datasets", "scipy", "fastapi", "uvicorn"}

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in LARGE
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
from omlx.models.library.borrow import module_of
from omlx.models.library.choose import BORROWED
for model_type, module in BORROWED.items():
    package = module_of({"model_type": model_type})
    assert package.__name__ == f"mlx_vlm.models.{module}", package
assert not LARGE & {name.partition(".")[0] for name in sys.modules}
"""


def test_families_are_imported_without_packages_for_sound_video_and_data() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_LARGE_PACKAGES], check=True)


def test_an_unknown_type_is_no_module() -> None:
    with pytest.raises(ValueError, match="hal9000"):
        module_of({"model_type": "hal9000"})


def test_a_wrapper_names_the_classes_behind_it() -> None:
    model = built("k2_horizon")
    assert isinstance(model, Borrowed)
    assert model.architecture == "mlx_vlm.models.k2_horizon"
