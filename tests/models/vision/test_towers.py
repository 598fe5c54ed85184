"""Eyes against the libraries that they borrow from: towers, preprocessing, text of prompts."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.step.plan import Look
from omlx.errors import BadRequest
from tests import zoo
from tests.lanes import few
from tests.models.vision import borrowed
from tests.models.vision.folders import CONFIGS, MARKERS, save_vlm
from tests.models.vision.loaded import difference, features_of, load_with_vision, picture
from tests.refusals import refused

pytestmark = [
    pytest.mark.needs_extra,
    pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning"),
]
DIFFERENT = ("qwen3_vl", "qwen2_5_vl", "gemma3", "mistral3", "lfm2_vl", borrowed.OFTEN)
"""Towers of any size and of one size, with windows, with marks of positions of their own."""
FAMILIES = few(CONFIGS, *DIFFERENT)
WHOLE = [family for family in FAMILIES if family.values != ("llava_next",)]
"""Families of which mlx-vlm's whole model is right: `test_preprocessing` shows the other."""
FEW = [
    pytest.param((50, 70), id="50x70"),
    *(pytest.param(size, id=f"{size}", marks=pytest.mark.slow) for size in ((1, 40), (300, 500))),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Directory and mlx-vlm's model of each family, made once."""
    made: dict[str, tuple[Path, Any]] = {}

    def make(family: str) -> tuple[Path, Any]:
        if family not in made:
            folder = tmp_path_factory.mktemp("vlm") / family
            made[family] = folder, save_vlm(family, folder)
        return made[family]

    return make


def whole_features(family: str, whole: Any, ids: list[int], image: Any, token_id: int) -> Any:
    """What mlx-vlm puts in the places of an image, before the text model scales it."""
    arrays = {k: mx.array(v) for k, v in image.arrays.items() if hasattr(v, "dtype")}
    pixels = arrays.pop("pixel_values")
    mask = mx.ones((1, len(ids)), mx.int32)
    found = whole.get_input_embeddings(mx.array([ids]), pixels, mask=mask, **arrays)
    places = [i for i, token in enumerate(ids) if token == token_id]
    return found.inputs_embeds[0][mx.array(places)], found


@pytest.mark.parametrize("size", FEW)
@pytest.mark.parametrize("family", WHOLE)
def test_features_are_those_of_mlx_vlm(folders: Any, family: str, size: tuple[int, int]) -> None:
    folder, whole = folders(family)
    model = load_with_vision(folder)
    eye, vision = model.vision.family, model.vision.reader
    assert eye is not None, model.vision.off_reason
    image = eye.patches(picture(*size), "name")
    text = eye.expand(f"Look: {MARKERS[family]} What is it?", [image])
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    wanted, found = whole_features(family, whole, ids, image, eye.token_id)
    features = features_of(vision, image)
    scale = vision.seeing.scale if family == "gemma3" else 1.0
    assert features.rows.shape == wanted.shape == (image.features, 64)
    assert difference(features.rows / scale, wanted) < 1e-5
    if features.marks:
        for mark, other in zip(features.marks, found.deepstack_visual_embeds, strict=True):
            assert difference(mark, other) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_a_tower_make_the_same_features(folders: Any, family: str) -> None:
    model = load_with_vision(folders(family)[0])
    eye, vision = model.vision.family, model.vision.reader
    image = eye.patches(picture(50, 70), "name")
    at_once = features_of(vision, image, stride=vision.tower.facts.steps)
    assert vision.tower.facts.steps > 1 or family == "gemma4_unified"  # it has no layers
    assert (features_of(vision, image).rows == at_once.rows).all().item()


@pytest.mark.parametrize("family", FAMILIES)
def test_places_of_images_are_spans_of_ids_below_zero(folders: Any, family: str) -> None:
    model = load_with_vision(folders(family)[0])
    eye = model.vision.family
    images = [eye.patches(picture(40, 60, seed), f"image {seed}") for seed in (1, 2)]
    text = eye.expand(f"{MARKERS[family]} and {MARKERS[family]}, so", images)
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    tokens, spans = eye.place(ids, images)
    hidden = [i for i, token in enumerate(tokens) if token < 0]
    assert hidden == [i for span in spans for i in range(span.start, span.stop)]
    assert [t for t in tokens if t >= 0] == [t for t in ids if t != eye.token_id]
    for image in images:
        shown = [span for span in spans if span.image == image.name]
        assert sum(span.stop - span.start for span in shown) == image.features
        assert [span.at for span in shown] == sorted(span.at for span in shown)
    assert len({tokens[i] for i in hidden}) == len(hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_placeholders_that_a_user_types_are_refused(folders: Any, family: str) -> None:
    model = load_with_vision(folders(family)[0])
    eye = model.vision.family
    image = eye.patches(picture(40, 60), "name")
    for text in (f"{MARKERS[family]} and {eye.marker}", "none"):
        with refused(BadRequest, "image.marker"):
            eye.expand(text, [image])
    with refused(BadRequest, "image.marker"):
        eye.place([5, eye.token_id], [image])


@pytest.mark.parametrize("family", FAMILIES)
def test_text_alone_is_bit_equal(folders: Any, family: str) -> None:
    folder, _ = folders(family)
    sees, blind = load_with_vision(folder), load_with_vision(folder, vision=False)
    assert blind.vision.off_reason.code == "vision.off.setting"
    ids = mx.array([[5, 9, 200, 31, 7, 7, 1500]])
    logits = [each.model(ids, cache=zoo.make_cache(each.model)) for each in (sees, blind)]
    assert (logits[0] == logits[1]).all().item()
    assert sees.size_bytes == blind.size_bytes + sees.vision.tower_bytes


@pytest.mark.parametrize("family", WHOLE)
def test_logits_are_those_of_mlx_vlm(folders: Any, family: str) -> None:
    """Positions, marks and scales of a prompt with two images; masks are tested by themselves."""
    folder, whole = folders(family)
    model = load_with_vision(folder)
    eye, vision = model.vision.family, model.vision.reader
    images = [eye.patches(picture(40, 60, 1), "one")]
    text = f"Say {MARKERS[family]} and more."
    ids = model.tokenizer.encode(eye.expand(text, images), add_special_tokens=False)
    tokens, spans = eye.place(ids, images)
    causal = replace(vision.sibling(), seeing=replace(vision.seeing, open_layers="none"))
    for image in images:
        causal.look(Look(1, image.name, 0, vision.tower.facts.steps), image)
    logits = causal.read(mx.array(causal.ids(tokens)), zoo.make_cache(model.model), 0, spans)
    wanted = whole_logits(family, whole, ids, images[0], eye.token_id)
    assert difference(logits[0], wanted) < 1e-4
    blind = model.model(mx.array([causal.ids(tokens)]), cache=zoo.make_cache(model.model))
    assert difference(blind[0], wanted) > 1e-2, "else the test proves nothing"


def whole_logits(family: str, whole: Any, ids: list[int], image: Any, token_id: int) -> Any:
    """What mlx-vlm's whole model says."""
    if family in borrowed.FAMILIES:
        arrays = {k: mx.array(v) for k, v in image.arrays.items() if hasattr(v, "dtype")}
        return whole(mx.array([ids]), **arrays).logits[0]
    _, found = whole_features(family, whole, ids, image, token_id)
    more = {k: v for k, v in found.to_dict().items() if v is not None and "mask_4d" not in k}
    embeddings = more.pop("inputs_embeds")
    return whole.language_model(mx.array([ids]), inputs_embeds=embeddings, **more).logits[0]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.values[0] in borrowed.FAMILIES])
def test_steps_behind_an_image_are_those_of_mlx_vlm(folders: Any, family: str) -> None:
    folder, whole = folders(family)
    model = load_with_vision(folder)
    eye, vision = model.vision.family, model.vision.reader
    image = eye.patches(picture(40, 60, 1), "one")
    text = eye.expand(f"Say {MARKERS[family]} and more.", [image])
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    tokens, spans = eye.place(ids, [image])
    caches = import_module("mlx_vlm.models.cache")
    cache, own = zoo.make_cache(model.model), caches.make_prompt_cache(whole.language_model)
    vision.look(Look(1, image.name, 0, vision.tower.facts.steps), image)
    arrays = {k: mx.array(v) for k, v in image.arrays.items() if hasattr(v, "dtype")}
    vision.read(mx.array(vision.ids(tokens)), cache, 0, spans)
    whole(mx.array([ids]), cache=own, **arrays)
    for at, token in enumerate((40, 41, 42), len(ids)):
        wanted = whole.language_model(mx.array([[token]]), cache=own).logits[0]
        assert difference(vision.read(mx.array([token]), cache, at, spans)[0], wanted) < 1e-4


def test_of_a_mixture_the_weights_of_the_chosen_experts_count(folders: Any) -> None:
    """A tower beside few active weights takes the time of more tokens."""
    dense, mixture = (
        load_with_vision(folders(family)[0]).vision.reader.tower.facts.patch_cost
        for family in ("qwen3_vl", "qwen3_vl_moe")
    )
    sizes = [
        load_with_vision(folders(family)[0]).size_bytes for family in ("qwen3_vl", "qwen3_vl_moe")
    ]
    assert sizes[1] > sizes[0]
    assert mixture > dense
