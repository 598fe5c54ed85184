"""Folders of mlx-vlm's text models: dense and quantized forms, shards that are left alone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from omlx.errors import ModelError
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry
from omlx.models.library.borrow import Borrowed
from omlx.models.pool.load_weights import load
from omlx.models.pool.opening import open_model
from tests.lanes import few
from tests.models.heads import in_shards
from tests.models.trees import with_tokenizer
from tests.zoo.borrowed import CONFIGS
from tests.zoo.build import whole_borrowed

pytest.importorskip("mlx_vlm")

from tests.engine.borrowed import random_head, weights_of
from tests.refusals import refused

FORMS: dict[str, dict[str, Any] | None] = {
    "dense": None,
    "affine": {"group_size": 32, "bits": 4, "mode": "affine"},
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
}
OVERRIDE = {"group_size": 32, "bits": 8, "mode": "affine"}
_NESTED = (
    (r"^language_model\.model\.", "model.language_model."),
    (r"^vision_tower", "model.visual"),
)
PUBLISHED = {"glm5_next": _NESTED, "mimo_v2": ((r"^vision_tower", "visual"),), "qwen4_exp": _NESTED}
"""Names in folders of Hugging Face's layout, as patterns of mlx-vlm's."""
STACKED = {"minimax_m3", "step3p7"}
"""Families whose experts are published in one tensor."""
UNKNOWN = {"inkling", "mistral_large3"}
"""Families whose published names are not known here."""
NAMES = ("deepseek_v4", "glm5_next", "mimo_v2", "mistral_large3", "qwen4_exp", "step3p7")


def save(folder: Path, name: str, form: dict[str, Any] | None = None) -> nn.Module:
    """Write a folder as mlx-vlm does; return its text model."""
    config = CONFIGS[name]
    mx.random.seed(0)
    whole = whole_borrowed(config)
    whole.eval()
    if form is not None:
        config = {**config, "quantization": {**form, **_quantize(whole, form)}}
    weights = dict(tree_flatten(whole.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return Borrowed(whole.language_model)


def _quantize(whole: nn.Module, form: dict[str, Any]) -> dict[str, Any]:
    """Quantize the text model, some layers in another form; return these by name."""
    others = {}

    def form_of(path: str, module: nn.Module) -> bool | dict[str, Any]:
        quantizable = path.startswith("language_model") and hasattr(module, "to_quantized")
        if not quantizable or module.weight.shape[-1] % 32:
            return False
        if path.endswith(("down_proj", "o_proj")):
            others[path] = OVERRIDE
            return OVERRIDE
        return form

    nn.quantize(whole, class_predicate=form_of)
    return others


def logits(model: Any) -> mx.array:
    return model(mx.arange(12)[None], cache=model.make_cache())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", few(NAMES, NAMES[0]))
def test_a_read_only_folder_gives_the_logits_that_were_saved(
    name: str, form: str, tmp_path: Path
) -> None:
    saved = save(tmp_path, name, FORMS[form])
    before = stamps(tmp_path)
    for path in (*tmp_path.iterdir(), tmp_path):
        path.chmod(path.stat().st_mode & 0o555)
    model, config, _ = open_model(tmp_path, "auto", trusted=False)
    tmp_path.chmod(0o755)
    assert isinstance(model, Borrowed)
    assert mx.array_equal(logits(model), logits(saved))
    assert config == ModelFiles.at(tmp_path).config
    assert stamps(tmp_path) == before


def stamps(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


@pytest.mark.parametrize(
    "name", few((name for name in CONFIGS if name not in UNKNOWN), "k2_horizon")
)
def test_a_folder_as_its_authors_publish_it(name: str, tmp_path: Path) -> None:
    saved = save(tmp_path, name)
    published: dict[str, mx.array] = {}
    for path, array in mx.load(str(tmp_path / "model.safetensors")).items():
        for pattern, other in PUBLISHED.get(name, ()):
            path = re.sub(pattern, other, path)
        before, expert, part = path.removeprefix("language_model.").partition(".switch_mlp.")
        if expert and name not in STACKED:
            parts = {f"{before}.experts.{i}.{part}": one for i, one in enumerate(array)}
        else:
            parts = {before + expert + part: array}
        published |= parts
    mx.save_safetensors(str(tmp_path / "model.safetensors"), published)
    model, *_ = open_model(tmp_path, "auto", trusted=False)
    assert mx.array_equal(logits(model), logits(saved))


def test_a_draft_head_beside_the_weights_is_not_read(tmp_path: Path) -> None:
    saved = save(tmp_path, "mimo_v2")
    mx.save_safetensors(str(tmp_path / "mtp.safetensors"), {"mtp.fc.weight": mx.ones((2, 2))})
    model, *_ = open_model(tmp_path, "auto", trusted=False)
    assert mx.array_equal(logits(model), logits(saved))


@pytest.mark.parametrize("name", ["deepseek_v4", "glm5_next"])
def test_a_draft_head_in_the_shards_is_not_read_as_weights(name: str, tmp_path: Path) -> None:
    saved = save(tmp_path, name)
    shard = str(tmp_path / "model.safetensors")
    head = in_shards(name, weights_of(random_head("mtp", name).module))
    mx.save_safetensors(shard, mx.load(shard) | head, metadata={"format": "mlx"})
    model, *_ = open_model(tmp_path, "auto", trusted=False)
    assert mx.array_equal(logits(model), logits(saved))


@pytest.mark.parametrize("name", ["longcat_flash_sparse", "glm_moe_dsa_shared"])
def test_a_cast_spares_the_parameters_that_must_stay_float32(name: str, tmp_path: Path) -> None:
    save(tmp_path, name)
    model, *_ = open_model(tmp_path, "bfloat16", trusted=False)
    dtypes = {path: array.dtype for path, array in tree_flatten(model.parameters())}
    kept = {path for path, dtype in dtypes.items() if dtype == mx.float32}
    assert kept
    assert all("e_score_correction_bias" in path for path in kept)


def test_shards_that_would_be_rewritten_are_refused_and_left_alone(tmp_path: Path) -> None:
    save(tmp_path, "k2_horizon")
    shard = tmp_path / "model.safetensors"
    length = int.from_bytes(shard.read_bytes()[:8], "little")
    header = json.loads(shard.read_bytes()[8 : 8 + length])
    first = next(name for name in header if name != "__metadata__")
    header[first]["dtype"] = "F8_E8M0"
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + shard.read_bytes()[8 + length :])
    before = stamps(tmp_path)
    with refused(ModelError, "model.dtype", file="model.safetensors", dtype="F8_E8M0"):
        open_model(tmp_path, "auto", trusted=False)
    assert stamps(tmp_path) == before


def test_missing_weights_are_an_error_with_their_names(tmp_path: Path) -> None:
    save(tmp_path, "k2_horizon")
    weights = mx.load(str(tmp_path / "model.safetensors"))
    del weights["language_model.model.norm.weight"]
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    with refused(ModelError, "model.build", "model.norm.weight"):
        open_model(tmp_path, "auto", trusted=False)


def test_code_in_a_folder_is_refused_before_mlx_vlm_reads_it(tmp_path: Path) -> None:
    save(tmp_path, "k2_horizon")
    config = {**CONFIGS["k2_horizon"], "model_file": "code.py"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text("raise SystemExit")
    with refused(ModelError, "model.remote_code"):
        open_model(tmp_path, "auto", trusted=False, library="mlx-vlm")


@pytest.mark.filterwarnings("ignore")  # transformers warns of types that it does not know
def test_a_loaded_folder_has_facts_of_the_engine(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "tiny")
    save(folder, "mimo_v2", FORMS["affine"])
    entry = inspect_checkpoint("tiny", folder, "test")
    assert (entry.usable, str(entry.library)) == (True, "mlx-vlm")
    loaded = load(ModelEntry("tiny", folder, "test"), "auto")
    facts = loaded.facts
    assert (facts.unbatchable, facts.no_uneven, facts.uncacheable, facts.no_rewind) == (None,) * 4
    assert facts.vocab_size == 96
    assert loaded.size_bytes < os.path.getsize(folder / "model.safetensors")  # towers are not read
