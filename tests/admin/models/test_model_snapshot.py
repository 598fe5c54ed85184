"""Facts of checkpoints: parameters and context length from config and headers."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from omlx.admin.models.model_snapshot import NO_FACTS, CheckpointFacts, checkpoint_facts
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Status
from tests.server.running import TARGET

CONFIG = {"model_type": "llama", "max_position_embeddings": 4096}


def checkpoint(directory: Path, model: nn.Module, **config: object) -> ModelEntry:
    directory.mkdir(parents=True)
    mx.save_safetensors(
        str(directory / "model.safetensors"), dict(tree_flatten(model.parameters()))
    )
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return ModelEntry("org/model", directory, "home")


@pytest.mark.parametrize(("group_size", "bits"), [(32, 8), (64, 4), (128, 2)])
def test_quantized_weights_count_as_what_they_stand_for(
    tmp_path: Path, group_size: int, bits: int
) -> None:
    layers = nn.Sequential(nn.Linear(256, 128), nn.Linear(128, 64, bias=False), nn.RMSNorm(64))
    dense = checkpoint(tmp_path / "dense", layers)
    nn.quantize(layers, group_size=group_size, bits=bits)
    quantization = {"group_size": group_size, "bits": bits}
    quantized = checkpoint(tmp_path / "quantized", layers, quantization=quantization)
    count = 256 * 128 + 128 + 128 * 64 + 64
    assert checkpoint_facts(dense) == CheckpointFacts(count, 4096, longest_context=4096)
    assert checkpoint_facts(quantized) == CheckpointFacts(count, 4096, longest_context=4096)


def test_a_real_model_has_its_facts() -> None:
    entry = ModelEntry(TARGET, BUNDLED / TARGET, "bundled")
    facts = checkpoint_facts(entry)
    assert facts.parameters is not None
    assert 1_000_000 < facts.parameters < 10_000_000
    assert facts.context_length == 4096


def test_a_broken_or_unusable_model_has_none(tmp_path: Path) -> None:
    entry = ModelEntry("org/model", tmp_path, "home")
    assert checkpoint_facts(entry) == NO_FACTS
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert checkpoint_facts(entry) == NO_FACTS
    unusable = ModelEntry(TARGET, BUNDLED / TARGET, "bundled", Status.SKIPPED)
    assert checkpoint_facts(unusable) == NO_FACTS
