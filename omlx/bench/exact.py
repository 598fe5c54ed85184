"""Whether two sides said the same. Where they first differ, how near a tie it was: kernels round by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.measure import Measured, Run
from omlx.bench.result import Difference, Exactness
from omlx.bench.subject import Subject
from omlx.bench.suites import Settings, plain_reference
from omlx.engine.sampling import noise_key
from omlx.engine.types import Request


def exactness(subject: Subject, settings: Settings, measured: Measured) -> Exactness | None:
    """Greedy answers against mlx-lm's; sampled ones against the engine's own without speculation, seed by seed."""
    case = measured.case
    prompts = subject.prompts[: settings.prompts]
    if case.suite == "batch":
        prompts = [subject.prompts[i % len(subject.prompts)] for i in range(int(case.params["rows"]))]
    temperature = float(case.params.get("temperature", 0.0))
    if temperature == 0.0:
        return _compare("mlx-lm", prompts, measured.ours, measured.theirs, subject.gap)
    plain = [
        [plain_reference(subject, prompt, settings.tokens, temperature, seed) for prompt in prompts]
        for seed in range(len(measured.ours))
    ]
    return _compare("omlx without speculation", prompts, measured.ours, plain, subject.gap)


def _compare(
    reference: str,
    prompts: Seq[tuple[int, ...]],
    ours: Iterable[Iterable[Run]],
    theirs: Iterable[Iterable[Run]],
    gap: Callable[[list[int], int, int], float],
) -> Exactness:
    same = of = 0
    first: Difference | None = None
    for our_trial, their_trial in zip(ours, theirs, strict=True):
        a, b = _answers(our_trial), _answers(their_trial)
        for i, (prompt, one, other) in enumerate(zip(prompts, a, b, strict=True)):
            of += 1
            place = first_difference(one, other)
            if place is None:
                same += 1
            elif first is None:
                ended = place >= min(len(one), len(other))
                apart = float("nan") if ended else gap([*prompt, *one[:place]], one[place], other[place])
                first = Difference(i, place, apart)
    return Exactness(reference, same, of, first)


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
        logits = subject.model(mx.array([[token]], mx.uint32), cache=cache)[0, -1, : subject.vocab_size]
        mx.eval(logits)
    scores: mx.array = logits.astype(mx.float32)
    sampling = asked.sampling
    if sampling.temperature == 0.0:
        return scores
    key = mx.array(noise_key(sampling.seed, sampling.choice, len(asked.tokens) + len(said)), mx.uint32)
    return scores + sampling.temperature * mx.random.gumbel((1, scores.size), key=key)[0]


def _answers(runs: Iterable[Run]) -> list[tuple[int, ...]]:
    return [tokens for run in runs for tokens in run.tokens]
