"""Tiny models with random weights, one for every architecture that mlx-lm has.

`build(name)` gives a float32 model whose outputs are worth comparing: logits spread wide, greedy decoding that
does not fall into a cycle at once. The same name and seed give the same weights.
"""

from __future__ import annotations

from mlx import nn

from tests.zoo.build import build_family, make_cache, noisy_copy, widened
from tests.zoo.family import SMALL, Family
from tests.zoo.main import MAIN
from tests.zoo.others import OTHERS, SKIPPED

FAMILIES: dict[str, Family] = {family.name: family for family in (*MAIN, *OTHERS)}
MAIN_NAMES: tuple[str, ...] = tuple(family.name for family in MAIN)
VOCAB_SIZE: int = SMALL["vocab_size"]


def build(name: str, seed: int = 0) -> nn.Module:
    """The tiny model of one architecture: float32, evaluated."""
    return build_family(FAMILIES[name], seed)


def padded_vocab(name: str, model: nn.Module, extra: int, seed: int = 0) -> nn.Module:
    """A copy of `model` (built as `name`) whose head is wider by `extra` ids that win nearly every argmax."""
    return widened(FAMILIES[name], model, extra, seed)


__all__ = [
    "FAMILIES",
    "MAIN_NAMES",
    "SKIPPED",
    "VOCAB_SIZE",
    "Family",
    "build",
    "make_cache",
    "noisy_copy",
    "padded_vocab",
]
