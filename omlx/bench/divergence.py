"""Where an answer diverges from another one, and how near a tie it was there.

Kernels of different shapes round differently, so two candidates that nearly tie may change places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.subject import Subject
from omlx.engine.sampling import noise_key
from omlx.engine.types import Request
from omlx.measure.sample import first_difference


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first `token` at which an answer differs from its reference.

    In logits, as plain decoding sees that position: `margin` lies between its best two candidates,
    `apart` between the two tokens. Both are infinite where one answer merely ended earlier.
    """

    token: int
    margin: float
    apart: float


def divergence(
    subject: Subject, request: Request, reference: Sequence[int], answer: Sequence[int]
) -> Divergence | None:
    """Return where `answer` diverges from `reference`, or None if they are the same."""
    place = first_difference(reference, answer)
    if place is None:
        return None
    if place >= min(len(reference), len(answer)):
        return Divergence(place, inf, inf)
    scores = plain_scores(subject, request, reference[:place])
    second, best = (float(score) for score in mx.sort(scores)[-2:])
    apart = abs(float(scores[reference[place]]) - float(scores[answer[place]]))
    return Divergence(place, best - second, apart)


def plain_scores(subject: Subject, request: Request, answer: Sequence[int]) -> mx.array:
    """Return the scores [V], float32, by which plain decoding chooses the token after `answer`.

    They are logits; with a temperature, plus that many times the position's Gumbel noise. The
    passes have the shapes that the engine's have.
    """
    cache = make_prompt_cache(subject.model)
    *prompt, newest = request.tokens
    chunk = subject.loop.limits.prefill_chunk
    for start in range(0, len(prompt), chunk):
        subject.model(mx.array([prompt[start : start + chunk]], mx.uint32), cache=cache)
    for token in (newest, *answer):
        output = subject.model(mx.array([[token]], mx.uint32), cache=cache)
        logits = output[0, -1, : subject.vocab_size]
        mx.eval(logits)
    scores: mx.array = logits.astype(mx.float32)
    sampling = request.sampling
    if sampling.temperature == 0.0:
        return scores
    position = len(request.tokens) + len(answer)
    key = mx.array(noise_key(sampling.seed, sampling.choice, position), mx.uint32)
    return scores + sampling.temperature * mx.random.gumbel((1, scores.size), key=key)[0]
