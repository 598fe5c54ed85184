"""Real towers in the engine: two turns about an image, in chunks, drafted, in company."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlx.engine.build import build_loop
from omlx.engine.speculation.strategy import DRAFT, NGRAM, OFF
from omlx.engine.types import Request, Speculation
from omlx.engine.vision.spans import PreparedImage
from tests import zoo
from tests.engine.harness import GREEDY, LIMITS, WARM, Bench
from tests.engine.vision.sighted import decode
from tests.lanes import few
from tests.models.test_borrowed import attributes
from tests.models.vision import borrowed
from tests.models.vision.folders import CONFIGS, MARKERS, save_vlm
from tests.models.vision.loaded import load_with_vision, picture

pytestmark = [
    pytest.mark.needs_extra,
    pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning"),
]
FAMILIES = few(CONFIGS, "qwen2_5_vl", "gemma3", borrowed.OFTEN)


def count_looks(vision: Any) -> list[str]:
    """The names of images that its tower looks at from now on."""
    looked: list[str] = []
    look = vision.tower.look

    def counted(image: PreparedImage) -> Any:
        looked.append(image.name)
        return look(image)

    vision.tower.look = counted
    return looked


@pytest.mark.parametrize("family", few(CONFIGS, borrowed.OFTEN))
def test_two_turns_look_once(tmp_path: Path, family: str) -> None:
    save_vlm(family, tmp_path)
    model = load_with_vision(tmp_path)
    eye, vision = model.vision.family, model.vision.reader
    image = eye.patches(picture(60, 40), eye.image_name(b"file"))
    text = eye.expand(f"Here {MARKERS[family]} we see, and so on", [image])
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    tokens, spans = eye.place(ids, [image])
    limits = replace(LIMITS, prefill_chunk=32, prefill_slice=16, context_length=2048)
    draft = zoo.noisy_copy(model.model, 0.05) if family in borrowed.FAMILIES else None
    before = sorted(attributes(model.model))
    loop = build_loop(
        model.model,
        model.vocab_size,
        limits,
        vision=vision.sibling(),
        draft=draft,
        draft_name="tiny",
    )
    looked = count_looks(vision)
    request = Request("a", tokens, GREEDY, max_tokens=12, spans=spans, images=(image,))
    first = replace(request, speculation=Speculation(NGRAM))
    bench = Bench(loop).run(first)
    answer = bench.tokens["a"]
    # It still decodes when the other prompt has been read, in slices of 16.
    longer = 12 + len(tokens) // 8
    turn = replace(first, id="turn", tokens=(*tokens, *answer, 40, 41), max_tokens=longer)
    turn = replace(turn, sampling=WARM)
    if draft is not None:
        turn = replace(turn, speculation=Speculation(DRAFT))
    other = replace(first, id="other", tokens=(60, 61, *tokens), speculation=Speculation(OFF))
    moved = [replace(span, start=span.start + 2, stop=span.stop + 2) for span in spans]
    other = replace(other, spans=tuple(moved))
    bench.run(turn, other)
    assert not bench.failed, bench.failed
    assert looked == [image.name], "one look for three prompts"
    assert bench.stats("turn").cached_n > spans[-1].stop
    for each in (first, turn, other):
        assert bench.tokens[each.id] == decode(vision, each, model.vocab_size), each.id
    if not loop.scheduler.batch.off_reason:
        assert any(forward.batched for plan in bench.plans for forward in plan.forwards)
    if draft is not None:
        assert bench.stats("turn").drafters["tiny"].rounds
        assert sorted(attributes(model.model)) == before
