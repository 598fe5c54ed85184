"""The suites: plain decoding, speculation, batches. Each is a list of cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import mlx.core as mx
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache

from lab.bench.engine.cases import EngineCase, Side
from lab.bench.engine.mlx_lm import run_batch, run_plain, run_speculative
from omlx.bench.drive import request, run
from omlx.bench.subject import Subject
from omlx.measure.sample import Sample

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
