"""Top-p, min-p and top-k in mlx-lm's order, without a sort of the vocabulary.

Top-k first selects the k best ids: those of them that top-p and min-p keep are what top-k keeps of
the tokens that top-p and min-p keep. Top-p alone clears the tail of the vocabulary, then halves by
rank until the border of the nucleus lies among few candidates. All shapes are static: nothing waits
for the device.

Probabilities are rounded to integers before they are added: the order in which a device adds them
does not move the border of the nucleus.
"""

from __future__ import annotations

from math import e, log
from typing import Final

import mlx.core as mx

GRID: Final = float(1 << 24)
"""Units of probability mass. Float32 sums between 0.5 and 1, as mlx-lm's, have this resolution."""

LEAF: Final = 4096
"""Candidates that are sorted on a CPU. More are halved first: a partition takes linear time."""

STRIDE: Final = 128
"""Candidates of which one is in the sample that tells where the tail of the vocabulary ends."""

BLOCK: Final = 2048
"""Logits of a block whose best are selected first: a GPU sorts as many in one kernel."""


def keep(
    logits: mx.array, top_p: float, min_p: float, top_k: int
) -> tuple[mx.array, mx.array | None]:
    """Apply top-p, min-p and top-k; 0 disables each. float32 logits [rows, V].

    Return the logits of candidates [rows, n], -inf where dropped, and the candidates' ids [rows, n]
    in ascending order: the k best with `top_k`, else None, which means all.
    """
    ids = best(logits, top_k) if top_k else None
    kept = take(logits, ids)
    peak = logits.max(axis=-1, keepdims=True)
    if top_p:
        # On a CPU, mlx's `exp` takes three times as long.
        weights = mx.power(e, logits - peak)
        candidates = take(weights, ids)
        kept = mx.where(candidates < lowest_weight(weights, candidates, top_p), -mx.inf, kept)
    if min_p:
        kept = mx.where(kept < peak + log(min_p), -mx.inf, kept)
    return kept, ids


def best(logits: mx.array, k: int) -> mx.array:
    """Return the ids of the `k` largest logits in ascending order; of equal ones the lowest ids.

    [rows, V] -> [rows, k]
    """
    rows, size = logits.shape
    blocks = -(-size // BLOCK)
    if blocks == 1 or k > BLOCK // 4:
        return mx.sort(mx.argpartition(-logits, kth=k - 1, axis=-1)[:, :k], axis=-1)
    missing = blocks * BLOCK - size
    padded = mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)
    # Equal logits are in the order of their ids, within a block and among blocks.
    local = best(padded.reshape(-1, BLOCK), k).reshape(rows, blocks, k)
    ids = (local + BLOCK * mx.arange(blocks, dtype=mx.uint32)[:, None]).reshape(rows, -1)
    return take(ids, best(take(padded, ids), k))


def take(values: mx.array, ids: mx.array | None) -> mx.array:
    """Return the values [rows, n] of `ids` [rows, n] among `values` [rows, V]; all for None."""
    return values if ids is None else mx.take_along_axis(values, ids, axis=-1)


def lowest_weight(
    weights: mx.array, candidates: mx.array, top_p: float, leaf: int | None = None
) -> mx.array:
    """Return the lowest weight in the nucleus [rows, 1].

    A token is in the nucleus if those that rank higher have less than `top_p` of the mass of all
    `weights` [rows, V]. `candidates` [rows, n] are the largest of them, or all.
    """
    scale = GRID / weights.sum(axis=-1, keepdims=True)

    def mass(part: mx.array) -> mx.array:
        return (part * scale + 0.5).astype(mx.int32)  # rounded

    masses = mass(weights)
    total = masses.sum(axis=-1, keepdims=True)
    limit = mx.ceil(total * top_p).astype(mx.int32)
    size = candidates.shape[-1]
    leaf = leaf or _leaf(size)
    if size > leaf:
        # Zeros are partitioned in a fraction of the time. So the tail below the nucleus, as far as
        # a sample estimates it, becomes zeros: if the others do have the mass of the nucleus.
        sample = mx.sort(candidates[:, ::STRIDE], axis=-1)
        spare = (total - limit) * (0.9 / STRIDE)  # the sample errs
        ended = mx.cumsum(mass(sample), axis=-1) < spare
        floor = mx.where(ended, sample, 0).max(axis=-1, keepdims=True)
        enough = (masses * (weights >= floor)).sum(axis=-1, keepdims=True) >= limit
        candidates = candidates * (candidates >= floor * enough)
    while size > leaf:
        half = size // 2
        parts = mx.partition(candidates.view(mx.int32), kth=size - half, axis=-1)
        parts = parts.view(mx.float32)  # weights are not negative: in the order of their bits
        above = mass(parts[:, size - half :]).sum(axis=-1, keepdims=True)
        descend = above < limit
        # The middle one of an odd number is in both.
        candidates = mx.where(descend, parts[:, : size - half], parts[:, half:])
        limit = mx.where(descend, limit - above, limit)
        size -= half
    ranked = mx.sort(candidates, axis=-1)
    above = mx.cumsum(mass(ranked), axis=-1, reverse=True, inclusive=False)
    return mx.where(above < limit, ranked, mx.inf).min(axis=-1, keepdims=True)


def _leaf(size: int) -> int:
    """Return how many candidates are sorted at once: all on a GPU, where a partition is a sort."""
    return LEAF if mx.default_device().type == mx.DeviceType.cpu else size
