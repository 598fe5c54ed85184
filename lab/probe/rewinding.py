"""Random windows and rollbacks: the logits must equal those computed token by token.

Each round computes the pending tokens and a draft whose first tokens are right. The cache is rolled
back to the accepted tokens, or, where a layer needs a checkpoint, to the start of the window; the
accepted tokens stay pending.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, ConcatenateKVCache, RotatingKVCache

from lab.probe.reference import Row
from omlx.engine.device.model import cache_kind
from omlx.engine.device.rewind import leaves, length_of, mark, rewind, unsupported
from omlx.errors import RewindError
from tests import zoo

LONGEST_DRAFT = 8
MOST_PENDING = 12


@dataclass
class Rewinding:
    """Largest relative `gap` of a logit; rollbacks that reached their target (`stepped`), and those
    that returned to a checkpoint, or, without one, refused (`restored`).
    """

    gap: float = 0.0
    restored: int = 0
    stepped: int = 0

    def back(self, cache: list[Any], now: int, target: int, marks: list[Any]) -> int:
        reached = rewind(cache, now, target, marks)
        held = length_of(cache)
        assert held is None or held == reached, (held, reached)
        self.restored += reached < target
        self.stepped += reached == target < now
        return reached


def way_back(model: nn.Module) -> str:
    """Return trim, slice, snapshot or no, by the classes of the model's cache."""
    cache = zoo.make_cache(model)
    if unsupported(cache):
        return "no"
    kinds = {cache_kind(type(leaf)) for leaf in leaves(cache)}
    if ArraysCache in kinds:
        return "snapshot"
    return "slice" if kinds & {RotatingKVCache, ConcatenateKVCache} else "trim"


def verify(row: Row, seed: int = 0) -> Rewinding:
    """Run as a target model: one window of pending and draft tokens, then roll back to the accepted
    ones.
    """
    rng = random.Random(seed)
    model, cache, result = row.model, zoo.make_cache(row.model), Rewinding()
    tokens = len(row.tokens) - LONGEST_DRAFT - 1
    computed, known = 0, 1
    while known < tokens:
        pending = known - computed
        drafted = 0 if pending > MOST_PENDING else rng.choice((0, 0, 1, 2, 4, LONGEST_DRAFT))
        accepted = rng.randint(0, drafted)
        right = row.tokens[computed : known + accepted]
        wrong = [(row.tokens[known + i] + 1 + i) % zoo.VOCAB_SIZE for i in range(accepted, drafted)]
        marks = [mark(cache, computed, fresh=len(right) + len(wrong) == 1)]
        logits = model(mx.array([right + wrong]), cache=cache)[0]
        result.gap = max(result.gap, row.gap(computed, logits[: len(right)]))
        computed = result.back(cache, computed + pending + drafted, known + accepted, marks)
        known += accepted + 1
    return result


def draft(row: Row, seed: int = 0) -> Rewinding:
    """Run as a draft model: pending tokens, then single steps that overwrite sliding rows, then
    roll back.
    """
    rng = random.Random(seed)
    model, cache, result = row.model, zoo.make_cache(row.model), Rewinding()
    tokens = len(row.tokens) - LONGEST_DRAFT - 1
    computed, known = 0, 1
    while known < tokens:
        drafted = rng.choice((1, 2, 4, LONGEST_DRAFT))
        accepted = rng.randint(0, drafted)
        marks = [mark(cache, computed, fresh=True)]
        result.gap = max(result.gap, row.read(computed, known, cache))
        for step in range(drafted):
            right = step < accepted
            token = (
                row.tokens[known + step]
                if right
                else (row.tokens[known + step] + 1) % zoo.VOCAB_SIZE
            )
            logits = model(mx.array([[token]]), cache=cache)[0]
            if right:
                result.gap = max(result.gap, row.gap(known + step, logits))
        computed = result.back(cache, known + drafted, known + accepted, marks)
        known += accepted + 1
    return result


def shorten(rows: Sequence[Row], seed: int = 0, tries: int = 14) -> Rewinding:
    """Shorten stored conversations by few or many tokens, without a checkpoint. It may refuse, but
    the result must be exact. Half of the caches were computed in one pass, half token by token.
    """
    rng = random.Random(seed)
    result = Rewinding()
    for attempt in range(tries):
        row = rows[attempt % len(rows)]
        cache, held, stepwise = zoo.make_cache(row.model), rng.randint(24, 60), attempt % 2 == 1
        first = held - 18 if stepwise else held
        row.read(0, first, cache)
        for position in range(first, held):
            row.read(position, position + 1, cache)
        target = rng.randint(held - 15 if attempt % 7 else 1, held - 1)
        try:
            result.back(cache, held, target, [])
        except RewindError:
            result.restored += 1
            continue
        result.gap = max(
            result.gap, row.read(target, target + 1, cache), row.read(target + 1, target + 6, cache)
        )
    return result
