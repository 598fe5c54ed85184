"""Why a model reads text alone; the documented families are those of the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from omlx.engine.step.plan import Look
from omlx.engine.types import run_through
from omlx.machine import extra_command
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.registry import Status
from omlx.models.library.choose import WRAPPERS
from omlx.models.pool.load_weights import LoadOptions, load_steps
from omlx.models.vision import support
from omlx.models.vision.support import CROSS_ATTENTION, EXTRA, FAMILIES, MAX_TOKENS
from tests import zoo
from tests.models.heads import declare
from tests.models.trees import inspected
from tests.models.vision.folders import DEMO, MARKERS, save_vlm
from tests.models.vision.loaded import load_with_vision, picture


def off_code(folder: Path) -> str:
    loaded = load_with_vision(folder).vision
    assert loaded.family is None
    assert loaded.reader is None
    return loaded.off_reason.code


def drop_tensors(folder: Path, part: str) -> None:
    path = str(folder / "model.safetensors")
    kept = {name: array for name, array in mx.load(path).items() if part not in name}
    mx.eval(kept)
    mx.save_safetensors(path, kept)


def test_a_text_model_has_no_eye() -> None:
    assert off_code(DEMO) == "vision.off.text"


@pytest.mark.needs_extra
@pytest.mark.parametrize(
    ("model_type", "code"),
    [
        ("mllama", "vision.off.cross_attention"),
        ("newfamily_vl", "vision.off.family"),
        ("mistral_large3", "vision.off.ignored"),
    ],
)
def test_other_families_are_named(tmp_path: Path, model_type: str, code: str) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    declare(tmp_path, model_type=model_type)
    reason = support.vision_off(ModelFiles.at(tmp_path))
    assert (reason.code, reason.params) == (code, {"model_type": model_type})


def test_a_tower_of_deepseek_v4_is_named_by_its_layers(tmp_path: Path) -> None:
    for layers, code in ((0, "vision.off.text"), (24, "vision.off.family")):
        config = {"model_type": "deepseek_v4", "vision_n_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps(config))
        reason = support.vision_off(ModelFiles.at(tmp_path))
        assert reason.code == code


@pytest.mark.needs_extra
@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
@pytest.mark.parametrize("family", ["ernie4_5_moe_vl", "qwen2_5_vl", "smolvlm"])
def test_weights_are_opened_once_for_text_model_and_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Of mlx-vlm, of mlx-lm with its own wrapper, and of its text half."""
    save_vlm(family, tmp_path)
    opened: list[str] = []
    load = mx.load

    def counted(file: str, *args: Any) -> Any:
        opened.append(Path(file).name)
        return load(file, *args)

    monkeypatch.setattr(mx, "load", counted)
    model = load_with_vision(tmp_path)
    assert opened == ["model.safetensors"]
    assert model.vision.reader is not None, model.vision.off_reason
    tower: Any = model.vision.reader.tower
    assert "language_model" not in tower._vlm
    text: Any = model.model
    assert not set(tower._vlm) & set(text)


@pytest.mark.needs_extra
def test_a_checkpoint_of_transformers_has_the_same_text_with_a_tower(tmp_path: Path) -> None:
    """Scales of Qwen3.5's norms are stored less 1, which mlx-vlm adds in place."""
    whole = save_vlm("qwen3_5", tmp_path)
    stored = {}
    for name, array in tree_flatten(whole.parameters()):
        name = name.replace("language_model.model.", "model.language_model.")
        name = name.replace("vision_tower.", "model.visual.")
        if "norm.weight" in name and "linear_attn" not in name and "visual" not in name:
            array = array - 1
        axes = {"conv1d.weight": 2, "patch_embed.proj.weight": -1}
        axis = next((axis for end, axis in axes.items() if name.endswith(end)), None)
        stored[name] = array if axis is None else mx.contiguous(mx.moveaxis(array, axis, 1))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    model = load_with_vision(tmp_path)
    assert model.vision.reader is not None, model.vision.off_reason
    ids = mx.array([[5, 9, 200, 31]])
    logits = model.model(ids, cache=zoo.make_cache(model.model))
    assert mx.allclose(logits, whole.language_model(ids).logits, atol=1e-4).item()


@pytest.mark.needs_extra
def test_a_tower_with_weights_of_another_shape_leaves_the_text(tmp_path: Path) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    path = str(tmp_path / "model.safetensors")
    arrays = mx.load(path)
    name = next(name for name in arrays if name.startswith("vision_tower"))
    mx.save_safetensors(path, {**arrays, name: mx.zeros((3, 3))})
    model = load_with_vision(tmp_path)
    assert model.vision.off_reason.code == "vision.off.failed"
    assert model.model(mx.array([[5, 6]]), cache=zoo.make_cache(model.model)).shape[1] == 2


@pytest.mark.needs_extra
def test_classes_chosen_by_setting_read_no_images_through_views(tmp_path: Path) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    loaded = load_with_vision(tmp_path, library="mlx-vlm").vision
    assert loaded.off_reason.code == "vision.off.family"


@pytest.mark.needs_extra
def test_code_of_the_folder_reads_no_images_and_runs_once(tmp_path: Path) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    declare(tmp_path, model_file="own.py")
    reason = support.vision_off(ModelFiles.at(tmp_path))
    assert reason.code == "vision.off.family", "known before it is loaded"
    runs = f"with open({str(tmp_path / 'runs')!r}, 'a') as file:\n    file.write('once ')"
    classes = "from mlx_lm.models.qwen2_vl import Model, ModelArgs"
    (tmp_path / "own.py").write_text(f"{classes}\n{runs}\n")
    options = LoadOptions(vision=True, trusted=True)
    loaded = run_through(load_steps(inspected(tmp_path), "float32", options))
    assert loaded.vision.off_reason.code == "vision.off.family"
    assert (tmp_path / "runs").read_text() == "once "


@pytest.mark.needs_extra
def test_a_conversion_without_a_tower_serves_text(tmp_path: Path) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    drop_tensors(tmp_path, "vision_tower")
    assert off_code(tmp_path) == "vision.off.no_weights"


@pytest.mark.needs_extra
def test_a_tower_that_cannot_be_built_leaves_the_text(tmp_path: Path) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "None"}')
    declare(tmp_path, rope_scaling={"type": "mrope", "mrope_section": [4, 6, 6]})
    assert off_code(tmp_path) == "vision.off.failed"


@pytest.mark.needs_extra
def test_without_the_extra_text_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_vlm("qwen2_5_vl", tmp_path)
    monkeypatch.setattr(support, "_PACKAGES", ("no_such_package",))
    model = load_with_vision(tmp_path)
    reason = model.vision.off_reason
    assert reason.code == "vision.off.extra"
    assert reason.params["command"] == extra_command("vision")
    assert extra_command("vision") in reason.message
    ids = mx.array([[5, 6, 7]])
    assert model.model(ids, cache=zoo.make_cache(model.model)).shape[-1]


@pytest.mark.needs_extra
@pytest.mark.parametrize("layout", ["mlx_vlm", "transformers", "older"])
def test_a_folder_that_mlx_lm_cannot_open_serves_its_text_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    whole = save_vlm("smolvlm", tmp_path)
    path = str(tmp_path / "model.safetensors")
    prefixes = {"transformers": "model.text_model.", "older": "language_model.model."}
    if layout in prefixes:
        arrays = mx.load(path)
        renamed = {
            name.replace("language_model.", prefixes[layout], 1)
            if "lm_head" not in name
            else name: array
            for name, array in arrays.items()
        }
        mx.eval(renamed)
        mx.save_safetensors(path, renamed)
    monkeypatch.setattr(support, "_PACKAGES", ("no_such_package",))
    assert inspected(tmp_path).status is Status.USABLE
    model = load_with_vision(tmp_path)
    assert model.vision.off_reason.code == "vision.off.extra"
    ids = mx.array([[5, 9, 200, 31]])
    logits = model.model(ids, cache=zoo.make_cache(model.model))
    wanted = whole.language_model(ids).logits
    assert mx.allclose(logits, wanted, atol=1e-4).item()


@pytest.mark.needs_extra
@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_quantized_conversions_see(tmp_path: Path, family: str) -> None:
    whole = save_vlm(family, tmp_path)
    nn.quantize(whole, group_size=32, bits=8, class_predicate=_divisible)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(whole.parameters())))
    declare(tmp_path, quantization={"group_size": 32, "bits": 8})
    model = load_with_vision(tmp_path)
    eye, vision = model.vision.family, model.vision.reader
    assert eye is not None, model.vision.off_reason
    image = eye.patches(picture(40, 60), "name")
    text = eye.expand(f"A {MARKERS[family]} so", [image])
    tokens, spans = eye.place(model.tokenizer.encode(text, add_special_tokens=False), [image])
    seer = vision.sibling()
    seer.look(Look(1, "name", 0, vision.tower.facts.steps), image)
    logits = seer.read(mx.array(seer.ids(tokens)), zoo.make_cache(model.model), 0, spans)
    assert mx.isfinite(logits).all().item()
    kinds = {type(module).__name__ for _, module in vision.tower._vlm.named_modules()}
    assert "QuantizedLinear" in kinds


def _divisible(_: str, module: Any) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0


PAGE = (Path(__file__).resolve().parents[3] / "docs/vision.md").read_text(encoding="utf-8")


def test_the_table_has_every_family() -> None:
    table = PAGE.partition("## Families")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted([*FAMILIES, "model_type"])


def test_the_page_names_what_is_refused_and_what_to_install() -> None:
    assert all(f"`{name}`" in PAGE for name in (*CROSS_ATTENTION, *WRAPPERS))
    assert EXTRA in PAGE
    assert f"{MAX_TOKENS:,} tokens" in PAGE
