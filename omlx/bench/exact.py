"""Whether two sides said the same. Where they first differ, how near a tie it was: kernels round by shape."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import inf

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.measure import Measured, Run
from omlx.bench.result import Difference, Exactness
from omlx.bench.sides import engine, request
from omlx.bench.subject import Subject
from omlx.bench.suites import Settings
from omlx.engine.sampling import noise_key
from omlx.engine.types import Request


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer first differs from another one. In logits, as plain decoding sees that place: `margin` lies
    between its best two candidates, `apart` between the two tokens that came. Infinite where one merely ended earlier.
    """

    token: int
    margin: float
    apart: float


def exactness(subject: Subject, settings: Settings, measured: Measured) -> Exactness | None:
    """Greedy answers against mlx-lm's; sampled ones against the engine's own without speculation, seed by seed."""
    case = measured.case
    prompts = subject.prompts[: settings.prompts]
    if case.suite == "batch":
        prompts = [
            subject.prompts[i % len(subject.prompts)] for i in range(int(case.params["rows"]))
        ]
    temperature = float(case.params.get("temperature", 0.0))
    asked = [
        [
            request(
                prompt,
                settings.tokens,
                stop_ids=subject.stop_ids,
                temperature=temperature,
                seed=seed,
            )
            for prompt in prompts
        ]
        for seed in range(len(measured.ours))
    ]
    if temperature == 0.0:
        return _compare(subject, asked, measured.ours, "mlx-lm", measured.theirs)
    plain = [[engine(subject.loop, [one]) for one in trial] for trial in asked]
    return _compare(subject, asked, measured.ours, "omlx without speculation", plain)


def _compare(
    subject: Subject,
    asked: Iterable[Iterable[Request]],
    ours: Iterable[Iterable[Run]],
    reference: str,
    theirs: Iterable[Iterable[Run]],
) -> Exactness:
    same = of = 0
    first: Difference | None = None
    for requests, our_trial, their_trial in zip(asked, ours, theirs, strict=True):
        for i, answers in enumerate(
            zip(requests, _answers(their_trial), _answers(our_trial), strict=True)
        ):
            of += 1
            _, one, other = answers
            if one == other:
                same += 1
            elif first is None and (found := parting(subject, *answers)) is not None:
                first = Difference(i, found.token, found.apart)
    return Exactness(reference, same, of, first)


def parting(subject: Subject, asked: Request, one: Seq[int], other: Seq[int]) -> Parting | None:
    """Where two answers to a request part, or None if they are the same."""
    place = first_difference(one, other)
    if place is None:
        return None
    if place >= min(len(one), len(other)):
        return Parting(place, inf, inf)
    scores = seen_by_plain(subject, asked, one[:place])
    second, best = (float(score) for score in mx.sort(scores)[-2:])
    return Parting(
        place, best - second, abs(float(scores[one[place]]) - float(scores[other[place]]))
    )


def first_difference(one: Seq[int], other: Seq[int]) -> int | None:
    """The first place at which two answers differ, or None if they are the same."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def seen_by_plain(subject: Subject, asked: Request, said: Seq[int]) -> mx.array:
    """What plain decoding chooses by behind the tokens `said` of its answer: logits [V], float32, and noise if it
    samples, which counts as much as the temperature. The passes have the shapes that the engine's have."""
    cache = make_prompt_cache(subject.model)
    *prompt, newest = asked.tokens
    chunk = subject.loop.limits.prefill_chunk
    for start in range(0, len(prompt), chunk):
        subject.model(mx.array([prompt[start : start + chunk]], mx.uint32), cache=cache)
    for token in (newest, *said):
        logits = subject.model(mx.array([[token]], mx.uint32), cache=cache)[
            0, -1, : subject.vocab_size
        ]
        mx.eval(logits)
    scores: mx.array = logits.astype(mx.float32)
    sampling = asked.sampling
    if sampling.temperature == 0.0:
        return scores
    key = mx.array(
        noise_key(sampling.seed, sampling.choice, len(asked.tokens) + len(said)), mx.uint32
    )
    return scores + sampling.temperature * mx.random.gumbel((1, scores.size), key=key)[0]


def _answers(runs: Iterable[Run]) -> list[tuple[int, ...]]:
    return [tokens for run in runs for tokens in run.tokens]
