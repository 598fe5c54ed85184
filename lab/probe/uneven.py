"""Rows of a batch that read windows of different lengths: the logits must equal those alone.

Every round each row reads its pending tokens and a draft of its own whose first tokens are right.
It is rolled back for itself: to the accepted tokens, or, where a layer is recurrent, to the start
of its window, and the accepted tokens stay pending.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from lab.probe.reference import Row
from omlx.engine.device import ragged
from omlx.engine.device.rewind import leaves
from tests import zoo

LONGEST_DRAFT = 6
MOST_PENDING = 12


def uneven_rounds(
    rows: Sequence[Row], lengths: Sequence[int] = (21, 7, 12), seed: int = 0, *, rolls: bool = True
) -> float:
    """Draft in rows of `lengths` tokens until one is at its end; extract them. Returns the largest
    gap.

    Without `rolls`, rejected tokens stay in the cache: a fault that must be found.
    """
    rng, model = random.Random(seed), rows[0].model
    caches = [zoo.make_cache(model) for _ in rows]
    for row, cache, length in zip(rows, caches, lengths, strict=True):
        row.read(0, length, cache)
    batch: list[Any] = ragged.merge_caches(caches)
    members = range(len(rows))
    recurrent = any(isinstance(leaf, ArraysCache) for leaf in leaves(batch))
    computed, known, gap = list(lengths), [length + 1 for length in lengths], 0.0
    while max(known) < len(rows[0].tokens) - LONGEST_DRAFT - 1:
        windows, accepted, right = [], [], []
        for i, row in enumerate(rows):
            full = known[i] - computed[i] > MOST_PENDING
            drafted = 0 if full else rng.choice((0, 0, 1, 2, 4, LONGEST_DRAFT))
            accepted.append(rng.randint(0, drafted))
            right.append(known[i] - computed[i] + accepted[i])
            wrong = range(known[i] + accepted[i], known[i] + drafted)
            windows.append(
                row.tokens[computed[i] : computed[i] + right[i]]
                + [(row.tokens[at] + 1) % zoo.VOCAB_SIZE for at in wrong]
            )
        widths = [len(window) for window in windows]
        marked = ragged.mark(batch, members)
        ragged.prepare(batch, widths)
        padded = [window + [0] * (max(widths) - len(window)) for window in windows]
        logits = model(mx.array(padded), cache=batch)
        ragged.finalize(batch, widths)
        for i, row in enumerate(rows):
            gap = max(gap, row.gap(computed[i], logits[i, : right[i]]))
            known[i] += accepted[i] + 1
            if right[i] == widths[i]:
                computed[i] += widths[i]
                continue
            computed[i] += 0 if recurrent else right[i]
            if rolls:
                ragged.rewind(batch, members, i, computed[i], marked)
    for i, row in enumerate(rows):
        single = [layer.extract(i) for layer in batch]
        gap = max(gap, row.read(computed[i], known[i] + 3, single))
    return gap
