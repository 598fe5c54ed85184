"""Sampling with noise keyed by position, and top-p, min-p and top-k without a sorted vocabulary.

    token(p) = argmax( filtered_logits(p) / T + Gumbel(key = (seed, choice) + p) )      T > 0
    token(p) = argmax( logits(p) )                                                      T = 0

A token depends only on the request's seed and the logits at its position. So a draft model samples
with the same noise, verification is equality of tokens, and neither speculation nor batching
changes the output. Logits and noise are cut to the target tokenizer's length: models pad their
vocabularies differently, and noise of another size would be unrelated.

Filters have mlx-lm's order. Top-k first selects the k best ids: those of them that top-p and min-p
keep are what top-k keeps of the tokens that top-p and min-p keep. Top-p alone clears the tail of
the vocabulary, then halves by rank until the border of the nucleus lies among few candidates. All
shapes are static: nothing waits for the device. Probabilities are rounded to integers before they
are added: the order in which a device adds them does not move the border of the nucleus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import e, log
from operator import attrgetter
from typing import Any, Final, cast

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from omlx.engine.types import Sampling

GRID: Final = float(1 << 24)
"""Units of probability mass. Float32 sums between 0.5 and 1, as mlx-lm's, have this resolution."""

LEAF: Final = 4096
"""Candidates sorted on a CPU. More are halved first: a partition takes linear time."""

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


def exclude(logits: mx.array, threshold: float, spared: Sequence[int]) -> mx.array:
    """Exclude top choices (XTC): of the ids above `threshold`, only the least likely one stays.

    logits [rows, V], -inf where filters dropped -> [rows, V]
    """
    chances = mx.softmax(logits, axis=-1)
    lowest = mx.where(chances > threshold, chances, mx.inf).min(axis=-1, keepdims=True)
    dropped = chances > lowest
    if spared:
        dropped[:, list(spared)] = False
    return mx.where(dropped, -mx.inf, logits)


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
    if leaf is None:  # all at once on a GPU, where a partition is a sort
        leaf = LEAF if mx.default_device().type == mx.DeviceType.cpu else size
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


Processor = Callable[[mx.array, mx.array], mx.array]

_MASK = (1 << 64) - 1
NEVER: Final = -1e9
"""A bias against which no logit stands."""


def noise_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """Return the 64-bit key of one draw as (high, low) words. Seeds are taken modulo 2^64.

    The mixer is SplitMix64's finaliser (Steele, Lea, Flood 2014).
    """
    mixed = _mix64(seed & _MASK)
    if choice:
        mixed = _mix64((mixed + choice * 0x9E3779B97F4A7C15) & _MASK)
    key = (mixed + position) & _MASK
    return key >> 32, key & 0xFFFFFFFF


def _mix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(slots=True)
class Draw:
    """One row to sample: parameters, absolute position, and tokens [n] that penalties look at."""

    sampler: RowSampler
    position: int
    history: mx.array | None = None

    @property
    def exclusion(self) -> tuple[float, tuple[int, ...]] | None:
        """Threshold and spared ids of XTC where this position has an exclusion."""
        sampling = self.sampler.sampling
        if not sampling.xtc_probability:
            return None
        high, low = self.sampler.key(self.position)
        chance = _mix64(high << 32 | low) / (_MASK + 1)  # apart from the Gumbel noise
        if chance >= sampling.xtc_probability:
            return None
        size = self.sampler.vocab_size
        return sampling.xtc_threshold, tuple(id for id in sampling.xtc_spared if id < size)


class RowSampler:
    """The sampling parameters of one request, with their logits processors.

    `bare`: an argmax of unprocessed logits.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self.sampling = sampling
        self.vocab_size = vocab_size
        self.processors = _processors(sampling)
        self.no_end = _no_end(sampling, vocab_size)
        self.greedy = sampling.temperature == 0.0
        self.bare = self.greedy and not self.processors and not self.no_end
        self.penalised = sampling.penalised

    @cached_property
    def filters(self) -> tuple[float, float, float, int]:
        """(temperature, top_p, min_p, top_k); rows with equal filters are sampled together."""
        s = self.sampling
        top_k = s.top_k if 0 < s.top_k < self.vocab_size else 0
        return (s.temperature, s.top_p if 0.0 < s.top_p < 1.0 else 0.0, s.min_p, top_k)

    def key(self, position: int) -> tuple[int, int]:
        return noise_key(self.sampling.seed, self.sampling.choice, position)


def process(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Apply bias and penalties in mlx-lm's order. logits [rows, V] -> [rows, V]"""
    processors: list[list[Processor]] = []
    for draw in draws:
        sampler = draw.sampler
        ended = draw.position >= sampler.sampling.end_position
        processors.append(sampler.processors if ended else [*sampler.processors, *sampler.no_end])
    if not any(processors):
        return logits
    rows = []
    for i, draw in enumerate(draws):
        row = logits[i : i + 1].astype(mx.float32)
        history = mx.array([], mx.uint32) if draw.history is None else draw.history
        for processor in processors[i]:
            row = processor(history, row)
        rows.append(row)
    return mx.concatenate(rows)


def permit(logits: mx.array, rows: Sequence[bytes | None]) -> mx.array:
    """Set the logits of forbidden ids to -inf; mask None allows all. [rows, V0] -> [rows, V0]"""
    size = logits.shape[-1]
    width = (size + 7) // 8
    packed = b"".join(
        b"\xff" * width if row is None else row[:width].ljust(width, b"\0") for row in rows
    )
    octets = mx.array(cast(Any, memoryview(packed))).reshape(len(rows), width, 1)
    allowed = (octets >> mx.arange(8, dtype=mx.uint8)) & 1  # [rows, width, 8]
    return mx.where(allowed.reshape(len(rows), -1)[:, :size] == 1, logits, -mx.inf)


def draw(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Sample one token per row from processed logits. logits [rows, V0] -> ids [rows], uint32"""
    first = draws[0].sampler
    if first.greedy and (len(draws) == 1 or all(map(attrgetter("sampler.greedy"), draws))):
        return mx.argmax(logits, axis=-1)
    exclusion = draws[0].exclusion
    if all(
        (d.sampler is first or d.sampler.filters == first.filters) and d.exclusion == exclusion
        for d in draws
    ):
        return _draw_alike(logits, draws)
    rows = [_draw_alike(logits[i : i + 1], draws[i : i + 1]) for i in range(len(draws))]
    return mx.concatenate(rows)


def logprobs_of(
    logits: mx.array, tokens: mx.array, top: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Return the log-softmax at the sampled tokens, and the `top` best ids with theirs, best first.

    logits [rows, V0], tokens [rows] -> ([rows], ids [rows, top], logprobs [rows, top])
    """
    logits = logits.astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logprobs, tokens[:, None].astype(mx.int32), axis=-1)[:, 0]
    if not top:
        empty = mx.zeros((logits.shape[0], 0))
        return chosen, empty.astype(mx.uint32), empty
    top = min(top, logits.shape[-1])
    ids = mx.argpartition(-logprobs, kth=top - 1, axis=-1)[:, :top]
    values = mx.take_along_axis(logprobs, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    best_ids = mx.take_along_axis(ids, order, axis=-1)
    return chosen, best_ids, mx.take_along_axis(values, order, axis=-1)


def _draw_alike(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    temperature, top_p, min_p, top_k = draws[0].sampler.filters
    if temperature == 0.0:
        return mx.argmax(logits, axis=-1)
    exclusion = draws[0].exclusion
    if exclusion is None:
        kept, ids = keep(logits.astype(mx.float32), top_p, min_p, top_k)
    else:  # in mlx-lm's order before top-k
        kept, _ = keep(logits.astype(mx.float32), top_p, min_p, 0)
        kept = exclude(kept, *exclusion)
        ids = best(kept, top_k) if top_k else None
        kept = take(kept, ids)
    scores = kept * (1.0 / temperature) + noise(draws, logits.shape[-1], ids)
    winners = mx.argmax(scores, axis=-1, keepdims=True)  # [rows, 1]
    return (winners if ids is None else take(ids, winners))[:, 0]


def noise(draws: Sequence[Draw], size: int, ids: mx.array | None = None) -> mx.array:
    """Return Gumbel noise [rows, size], each row from its own key; with `ids` [rows, n], theirs."""
    keys = mx.array([d.sampler.key(d.position) for d in draws], mx.uint32)
    if len(draws) == 1:
        uniform = mx.random.uniform(shape=(1, size), key=keys[0])
    else:
        uniform = mx.vmap(lambda key: mx.random.uniform(shape=(size,), key=key))(keys)
    return -mx.log(-mx.log(take(uniform, ids)))


def _no_end(sampling: Sampling, vocab_size: int) -> list[Processor]:
    """Return a bias against end tokens, finite: where a mask allows nothing else, they win."""
    bias = {token: NEVER for token in sampling.end_ids if token < vocab_size}
    return list(make_logits_processors(logit_bias=bias or None))


def _processors(sampling: Sampling) -> list[Processor]:
    if not sampling.penalised and not sampling.logit_bias:
        return []
    repetition = sampling.repetition_penalty if sampling.repetition_penalty != 1.0 else None
    return list(
        make_logits_processors(
            logit_bias=dict(sampling.logit_bias) or None,
            repetition_penalty=repetition,
            repetition_context_size=sampling.repetition_context,
            presence_penalty=sampling.presence_penalty or None,
            presence_context_size=sampling.presence_context,
            frequency_penalty=sampling.frequency_penalty or None,
            frequency_context_size=sampling.frequency_context,
        )
    )
