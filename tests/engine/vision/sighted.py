"""Tiny text models that see: random features in the place of a tower, and plain decoding of prompts
with images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from omlx.engine.device.sampling import Draw, RowSampler, draw, process
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.strategy import DRAFT, Strategy
from omlx.engine.step.plan import Look
from omlx.engine.types import Request, Sampling, Speculation
from omlx.engine.vision.reader import Features, Looking, Rotary, Seeing, Vision
from omlx.engine.vision.spans import ImageSpan, PreparedImage, TowerFacts, image_ids, words
from tests import zoo
from tests.engine import harness
from tests.engine.harness import prompt

SECTIONS = {"qwen2_vl": (2, 3, 3), "qwen3_vl": (4, 2, 2), "qwen3_vl_moe": (4, 2, 2), "qwen3_5": ()}
OPEN = {"gemma3": "all", "gemma4": "sliding"}
MARKS = {"qwen3_vl": 2, "qwen3_vl_moe": 2}
FAMILIES = (
    *("llama", "qwen2_vl", "qwen3_vl", "qwen3_5"),
    *("gemma3", "gemma4", "lfm2-vl", "mistral3"),
)
BLANK = 0
STEPS = 4


@dataclass
class RandomTower:
    """A tower whose features depend on the image's name alone. `looked` names what it computed."""

    hidden: int
    marks: int
    facts: TowerFacts

    def __post_init__(self) -> None:
        self.looked: list[str] = []
        self.fails = False

    def look(self, image: PreparedImage) -> Looking:
        self.looked.append(image.name)
        for step in range(self.facts.steps - 1):
            yield mx.array(step)
        if self.fails:
            raise ValueError("the tower fell")
        key = mx.random.key(sum(image.name.encode()))
        rows = mx.random.normal((self.marks + 1, image.features, self.hidden), key=key)
        return Features(rows[0], tuple(rows[1:]))


def body_of(target: nn.Module) -> Any:
    whole: Any = target.language_model if "language_model" in target else target
    return whole.model


def sighted(name: str, seed: int = 0, patch_cost: float = 1.0) -> Vision:
    """Return the tiny model of a family with a random tower, both new."""
    target = zoo.build(name, seed)
    body, rotary = body_of(target), None
    if name in SECTIONS:
        ropes = [layer.self_attn.rope for layer in body.layers if "self_attn" in layer]
        half = ropes[0].dims // 2
        sections = SECTIONS[name]
        if sum(sections) != half:
            sections = (half - 2 * (half // 3), half // 3, half // 3)
        rotary = Rotary(sections, interleaved=name != "qwen2_vl")
    marks, hidden = MARKS.get(name, 0), body.embed_tokens.weight.shape[1]
    open_layers = OPEN.get(name, "none")
    facts = TowerFacts(
        STEPS,
        patch_cost=patch_cost,
        patch_bytes=1 << 10,
        feature_bytes=4 * hidden * (1 + marks),
        whole=open_layers != "none",
    )
    seeing = Seeing(BLANK, open_layers=open_layers, rotary=rotary, marks=marks)  # type: ignore[arg-type]
    return Vision(target, body, seeing, RandomTower(hidden, marks, facts))


def image(name: str, rows: int, columns: int) -> PreparedImage:
    patches = rows * columns
    return PreparedImage(name, {"pixels": np.zeros(1)}, patches, patches, (rows, columns))


CAT, DOG = image("cat", 4, 6), image("dog", 3, 8)


def shown(
    name: str,
    images: tuple[PreparedImage, ...],
    sampling: Sampling,
    strategy: Strategy = DRAFT,
    *,
    salt: int = 0,
    max_tokens: int = 24,
    id: str = "a",
    before: int = 9,
) -> Request:
    """A request that shows images between its words."""
    tokens, spans = list(prompt(before, salt)), []
    for each in images:
        stop = len(tokens) + each.features
        grid = each.grid if name in SECTIONS else None
        spans.append(ImageSpan(len(tokens), stop, each.name, 0, grid))
        tokens += [*image_ids(each.name, 0, each.features), 5, 6, 7]
    tokens += prompt(6, salt + 5)
    speculation = Speculation(strategy)
    return Request(
        id,
        tuple(tokens),
        sampling,
        max_tokens=max_tokens,
        speculation=speculation,
        spans=tuple(spans),
        images=images,
    )


def loop_of(vision: Vision, draft: nn.Module | None = None, **more: Any) -> EngineLoop:
    return harness.loop_of(vision.model, draft, vision=vision, **more)


def decode(vision: Vision, of: Request, vocab_size: int = zoo.VOCAB_SIZE) -> list[int]:
    """What a model says to a request: the prompt in one pass, then token by token, by no code of
    the engine but its sampling function and `Vision.read`.
    """
    seer = vision.sibling()
    for each in of.images:
        seer.look(Look(0, each.name, 0, vision.tower.facts.steps), each)
    cache, sampler = make_prompt_cache(vision.model), RowSampler(of.sampling, vocab_size)
    tokens, start = list(of.tokens), 0
    for _ in range(of.max_tokens or 0):
        ids = mx.array(seer.ids(tuple(tokens[start:])), mx.uint32)
        logits = seer.read(ids, cache, start, of.spans)[0, -1:, :vocab_size]
        start = len(tokens)
        history = None
        if of.sampling.penalised:
            history = mx.array(words(tokens)[-of.sampling.history :], mx.uint32)
        place = Draw(sampler, len(tokens), history)
        tokens.append(int(draw(process(logits, [place]), [place]).item()))
    return tokens[len(of.tokens) :]
