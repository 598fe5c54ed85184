"""The suites, lists of cases of interleaved pairs: plain decoding, speculation, batches.

A pair is the same work on both sides: ours, and mlx-lm's.

trial 1   A B   B A   A B …      one pair after another, in alternating order
trial 2   B A   A B   B A …      a trial's figure is that of the sum over its pairs
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Final

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from lab.bench.drive import request, run, settle
from lab.bench.series import run_pair
from lab.bench.subject import Subject
from omlx.measure.sample import Meter, Sample

WARM_UP: Final = -1
"""Number of the trial before the first, which is not counted."""

Side = Callable[[int], Sample]
"""Does the work once. Takes the trial's number as its seed."""


@dataclass(frozen=True, slots=True)
class EngineCase:
    """`metric`: a trial's figure, from the sum of its samples; `baseline`: what mlx-lm runs."""

    suite: str
    name: str
    baseline: str
    pairs: Sequence[tuple[Side, Side]]
    params: Mapping[str, int | float] = field(default_factory=dict)
    unit: str = "tok/s"
    metric: Callable[[Sample], float] = attrgetter("rate")
    smaller_is_better: bool = False


@dataclass(frozen=True, slots=True)
class CaseSamples:
    """The samples of a case, by trial, then by pair."""

    case: EngineCase
    ours: tuple[tuple[Sample, ...], ...]
    theirs: tuple[tuple[Sample, ...], ...]


def measure(case: EngineCase, trials: int, tick: Callable[[], object]) -> CaseSamples:
    """Run one round of warm-up, then `trials`. Calls `tick` after every pair."""
    ours: list[tuple[Sample, ...]] = []
    theirs: list[tuple[Sample, ...]] = []
    for trial in range(WARM_UP, trials):
        gc.collect()
        samples = []
        for number, (our_side, their_side) in enumerate(case.pairs):
            samples.append(
                run_pair(
                    partial(_run_settled, our_side, trial),
                    partial(_run_settled, their_side, trial),
                    swap=(trial + number) % 2 == 0,
                )
            )
            tick()
        if trial != WARM_UP:
            our_samples, their_samples = zip(*samples, strict=True)
            ours.append(our_samples)
            theirs.append(their_samples)
    return CaseSamples(case, tuple(ours), tuple(theirs))


def _run_settled(side: Side, trial: int) -> Sample:
    settle()
    return side(max(trial, 0))


TEMPERATURES: Final = (0.0, 0.8)

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class EngineSettings:
    """`tokens` bounds an answer; those of `plain` and `spec` may end earlier, `batch` never does.

    `windows` are draft lengths in tokens, `rows` batch sizes.
    """

    trials: int = 9
    prompts: int = 4
    tokens: int = 96
    windows: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    rows: tuple[int, ...] = (1, 4, 8, 16)


def plain(subject: Subject, settings: EngineSettings) -> Iterator[EngineCase]:
    """Plain decoding, and mlx-lm against itself: how much noise a ratio has."""
    pairs, noise = [], []
    for prompt in subject.prompts[: settings.prompts]:
        theirs = _theirs(subject, prompt, settings.tokens)
        pairs.append((_ours(subject, prompt, settings.tokens), theirs))
        noise.append((theirs, theirs))
    yield EngineCase("plain", "T=0", "generate_step", pairs)
    yield EngineCase("noise", "T=0, mlx-lm against itself", "generate_step", noise)


def mlx_lm_speculates(subject: Subject) -> bool:
    """Return whether mlx-lm can speculate with a model: every layer must be trimmable."""
    return bool(can_trim_prompt_cache(make_prompt_cache(subject.model)))


def speculative(subject: Subject, settings: EngineSettings) -> Iterator[EngineCase]:
    """Every draft length and temperature; mlx-lm decodes plainly where it cannot speculate."""
    baseline = "speculative_generate_step"
    if not mlx_lm_speculates(subject):
        baseline = "generate_step (it cannot speculate here)"
    for temperature in TEMPERATURES:
        for length in settings.windows:
            pairs = []
            for prompt in subject.prompts[: settings.prompts]:
                ours = _ours(subject, prompt, settings.tokens, temperature, length)
                theirs = _theirs(subject, prompt, settings.tokens, temperature, length)
                pairs.append((ours, theirs))
            params = {"window": length, "temperature": temperature}
            yield EngineCase("spec", f"T={temperature:g} k={length}", baseline, pairs, params)


def batch(subject: Subject, settings: EngineSettings) -> Iterator[EngineCase]:
    """Batches of every size."""
    for rows in settings.rows:
        prompts = batch_prompts(subject, rows)
        ours = _our_batch(subject, prompts, settings.tokens)
        theirs = _their_batch(subject, prompts, settings.tokens)
        yield EngineCase(
            "batch", f"{rows} rows", "BatchGenerator", [(ours, theirs)], {"rows": rows}
        )


def batch_prompts(subject: Subject, rows: int) -> list[Prompt]:
    return [subject.prompts[row % len(subject.prompts)] for row in range(rows)]


def _ours(
    subject: Subject,
    prompt: Prompt,
    tokens: int,
    temperature: float = 0.0,
    length: int | None = None,
) -> Side:
    build = partial(
        request,
        prompt,
        tokens,
        stop_ids=subject.stop_ids,
        temperature=temperature,
        draft_length=length,
    )
    return lambda seed: run(subject.loop, [build(seed=seed)])


def _theirs(
    subject: Subject,
    prompt: Prompt,
    tokens: int,
    temperature: float = 0.0,
    length: int | None = None,
) -> Side:
    model, stop_ids = subject.model, subject.stop_ids

    def side(seed: int) -> Sample:
        mx.random.seed(seed)
        if length is None or not mlx_lm_speculates(subject):
            return run_plain(model, prompt, tokens, stop_ids, temperature)
        return run_speculative(model, subject.draft, prompt, tokens, stop_ids, temperature, length)

    return side


def _our_batch(subject: Subject, prompts: list[Prompt], tokens: int) -> Side:
    requests = [request(prompt, tokens) for prompt in prompts]
    return lambda seed: run(subject.loop, requests)


def _their_batch(subject: Subject, prompts: list[Prompt], tokens: int) -> Side:
    return lambda seed: run_batch(subject.model, prompts, tokens)


def run_plain(
    model: Any,
    prompt: tuple[int, ...],
    max_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
) -> Sample:
    meter = Meter(1)
    steps = generate_step(
        mx.array(prompt, mx.uint32),
        model,
        max_tokens=max_tokens,
        sampler=make_sampler(temp=temperature),
    )
    token: int  # mlx-lm's annotation says array
    for token, _ in steps:  # type: ignore[assignment]
        meter.add({0: (token,)}, ended=token in stop_ids)
        if token in stop_ids:
            break
    return meter.sample()


def run_speculative(
    model: Any,
    draft: Any,
    prompt: tuple[int, ...],
    max_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
    draft_length: int,
) -> Sample:
    """mlx-lm yields a round's tokens one by one; they count as arrived with the last of them."""
    meter = Meter(1)
    steps = speculative_generate_step(
        mx.array(prompt, mx.uint32),
        model,
        draft,
        num_draft_tokens=draft_length,
        max_tokens=max_tokens,
        sampler=make_sampler(temp=temperature),
    )
    burst: list[int] = []
    done = proposed = accepted = 0
    token: int  # mlx-lm's annotation says array
    for token, _, drafted in steps:  # type: ignore[assignment]
        burst.append(token)
        accepted += drafted
        stopped = token in stop_ids
        if stopped or not drafted or done + len(burst) == max_tokens:
            meter.add({0: burst}, ended=stopped)
            proposed += min(draft_length, max_tokens - done)
            done += len(burst)
            burst = []
        if stopped:
            break
    return meter.sample(proposed, accepted)


def run_batch(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> Sample:
    """All prompts are prefilled together, mlx-lm's best case."""
    meter = Meter(len(prompts))
    generator: Any = BatchGenerator(
        model,
        max_tokens=max_tokens,
        prefill_batch_size=len(prompts),
        completion_batch_size=len(prompts),
    )
    uids = generator.insert([list(prompt) for prompt in prompts])
    rows = {uid: row for row, uid in enumerate(uids)}
    while responses := generator.next_generated():
        ended = any(response.finish_reason is not None for response in responses)
        arrived = {rows[response.uid]: (response.token,) for response in responses}
        meter.add(arrived, ended=ended)
    generator.close()
    return meter.sample()
