"""The bundled head of SmolLM2: written once beside its model, dense or packed as that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.errors import ModelError
from omlx.models.hub.converted import GROUP_SIZE, write_head
from omlx.models.hub.converted import HEAD_FILE as NAME
from tests.refusals import refused

BITS = 6
IDS = mx.array([4, 2, 9], mx.int32)


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    return packed_head(tmp_path / "bundled.safetensors", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return converted(tmp_path / "model")


def packed_head(file: Path, seed: int) -> Path:
    mx.random.seed(seed)
    matrix = mx.random.normal((32, 2 * GROUP_SIZE)).astype(mx.float16)
    parts = mx.quantize(matrix, group_size=GROUP_SIZE, bits=BITS)
    named = zip(("weight", "scales", "biases"), parts, strict=True)
    tensors = {f"mtp.fc.{part}": tensor for part, tensor in named}
    tensors |= {"mtp.norm.weight": mx.ones(32, mx.float16), "mtp.draft_token_ids": IDS}
    mx.save_safetensors(str(file), tensors, metadata={"format": "mlx"})
    return file


def converted(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder


def test_it_is_float32_beside_dense_weights(bundled: Path, folder: Path) -> None:
    write_head(bundled, folder)
    packed, written = mx.load(str(bundled)), mx.load(str(folder / NAME))
    assert set(written) == {"mtp.fc.weight", "mtp.norm.weight", "mtp.draft_token_ids"}
    parts = [packed[f"mtp.fc.{part}"] for part in ("weight", "scales", "biases")]
    expected = mx.dequantize(*parts, group_size=GROUP_SIZE, bits=BITS).astype(mx.float32)
    assert written["mtp.fc.weight"].dtype == mx.float32
    assert mx.array_equal(written["mtp.fc.weight"], expected)
    assert written["mtp.norm.weight"].dtype == mx.float32
    assert written["mtp.draft_token_ids"].dtype == mx.int32
    assert mx.array_equal(written["mtp.draft_token_ids"], IDS)


def test_it_stays_packed_beside_packed_weights(tmp_path: Path, bundled: Path) -> None:
    folder = converted(tmp_path / "packed", quantization={"group_size": 32, "bits": 4})
    write_head(bundled, folder)
    packed, written = mx.load(str(bundled)), mx.load(str(folder / NAME))
    assert packed.keys() == written.keys()
    assert all(mx.array_equal(packed[name], written[name]) for name in packed)


def test_it_is_written_once_and_replaced_by_a_newer_one(
    tmp_path: Path, bundled: Path, folder: Path
) -> None:
    write_head(bundled, folder)
    first = (folder / NAME).stat()
    write_head(bundled, folder)
    assert (folder / NAME).stat().st_ino == first.st_ino
    before = (folder / NAME).read_bytes()
    write_head(packed_head(tmp_path / "newer.safetensors", 2), folder)
    assert (folder / NAME).read_bytes() != before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", NAME]


@pytest.mark.parametrize("own", ["another head", "damaged"])
def test_a_head_of_the_users_own_stays(bundled: Path, folder: Path, own: str) -> None:
    if own == "damaged":
        (folder / NAME).write_bytes(b"not a head")
    else:
        mx.save_safetensors(str(folder / NAME), {"mtp.norm.weight": mx.ones(3)})
    before = (folder / NAME).read_bytes()
    write_head(bundled, folder)
    assert (folder / NAME).read_bytes() == before


def test_a_damaged_bundled_file_leaves_nothing(bundled: Path, folder: Path) -> None:
    bundled.write_bytes(bundled.read_bytes()[:-9])
    with refused(ModelError, "gguf.not_written"):
        write_head(bundled, folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
