"""Tiny models with random weights, one for every architecture of mlx-lm.

`build(name)` returns a float32 model with widely spread logits, whose greedy decoding does not fall
into a cycle at once. The same name and seed give the same weights.
"""

from __future__ import annotations

from mlx import nn

from tests.lanes import few
from tests.zoo.borrowed import CONFIGS
from tests.zoo.build import build_borrowed, build_family, make_cache, noisy_copy, widened
from tests.zoo.family import SMALL, Family, in_thirds
from tests.zoo.main import MAIN
from tests.zoo.others import OTHERS, SKIPPED

FAMILIES: dict[str, Family] = {family.name: family for family in (*MAIN, *OTHERS)}
BORROWED_NAMES: tuple[str, ...] = tuple(CONFIGS)
BORROWED_CASES = few(BORROWED_NAMES, "mimo_v2", "glm5_next", "deepseek_v4")
"""One family of each kind of cache; the others are slow."""
MAIN_NAMES: tuple[str, ...] = tuple(family.name for family in MAIN)
VOCAB_SIZE: int = SMALL["vocab_size"]


def build(name: str, seed: int = 0) -> nn.Module:
    """Return the tiny model of one architecture: float32, evaluated."""
    if name not in FAMILIES:
        return build_borrowed(name, seed)
    return build_family(FAMILIES[name], seed)


def build_thirds(name: str) -> nn.Module:
    """Return the tiny model of one architecture with sizes that three ranks can share."""
    return build_family(in_thirds(FAMILIES[name]), 0)


def padded_vocab(name: str, model: nn.Module, extra: int, seed: int = 0) -> nn.Module:
    """Return a copy of `model` (built as `name`) with `extra` padding ids that win nearly every
    argmax.
    """
    return widened(FAMILIES[name], model, extra, seed)


__all__ = [
    "BORROWED_CASES",
    "BORROWED_NAMES",
    "FAMILIES",
    "MAIN_NAMES",
    "SKIPPED",
    "VOCAB_SIZE",
    "Family",
    "build",
    "build_thirds",
    "make_cache",
    "noisy_copy",
    "padded_vocab",
]
