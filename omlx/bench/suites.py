"""What is compared with what: plain decoding, speculation, batches. Each suite is a list of cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from omlx.bench.measure import Case, Run, Side
from omlx.bench.sides import engine, mlx_lm_batch, mlx_lm_plain, mlx_lm_speculative, request
from omlx.bench.subject import Subject

TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class Settings:
    """`tokens` is the longest answer; answers of `plain` and `spec` may end earlier, those of `batch` do not."""

    trials: int = 9
    prompts: int = 4
    tokens: int = 96
    windows: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    rows: tuple[int, ...] = (1, 4, 8, 16)


def plain(subject: Subject, settings: Settings) -> Iterator[Case]:
    prompts = subject.prompts[: settings.prompts]
    theirs = [
        _theirs(subject, prompt, settings.tokens, temperature=0.0, window=None)
        for prompt in prompts
    ]
    ours = [_ours(subject, prompt, settings.tokens, temperature=0.0) for prompt in prompts]
    yield Case("plain", "T=0", "generate_step", list(zip(ours, theirs, strict=True)))
    yield Case(
        "noise",
        "T=0, mlx-lm against itself",
        "generate_step",
        list(zip(theirs, theirs, strict=True)),
    )


def spec(subject: Subject, settings: Settings) -> Iterator[Case]:
    """At every window and temperature. Where mlx-lm cannot speculate, the other side is its plain decoding."""
    baseline = (
        "speculative_generate_step"
        if subject.mlx_lm_speculates
        else "generate_step (it cannot speculate here)"
    )
    for temperature in TEMPERATURES:
        for window in settings.windows:
            pairs = [
                (
                    _ours(subject, prompt, settings.tokens, temperature=temperature, window=window),
                    _theirs(
                        subject, prompt, settings.tokens, temperature=temperature, window=window
                    ),
                )
                for prompt in subject.prompts[: settings.prompts]
            ]
            params = {"window": window, "temperature": temperature}
            yield Case("spec", f"T={temperature:g} k={window}", baseline, pairs, params)


def batch(subject: Subject, settings: Settings) -> Iterator[Case]:
    for rows in settings.rows:
        prompts = [subject.prompts[i % len(subject.prompts)] for i in range(rows)]
        pair = (
            _our_batch(subject, prompts, settings.tokens),
            _their_batch(subject, prompts, settings.tokens),
        )
        yield Case("batch", f"{rows} rows", "BatchGenerator", [pair], {"rows": rows})


def _ours(
    subject: Subject,
    prompt: tuple[int, ...],
    tokens: int,
    *,
    temperature: float,
    window: int | None = None,
) -> Side:
    ask = partial(
        request, prompt, tokens, stop_ids=subject.stop_ids, temperature=temperature, window=window
    )
    return lambda seed: engine(subject.loop, [ask(seed=seed)])


def _theirs(
    subject: Subject,
    prompt: tuple[int, ...],
    tokens: int,
    *,
    temperature: float,
    window: int | None,
) -> Side:
    def side(seed: int) -> Run:
        mx.random.seed(seed)
        if window is None or not subject.mlx_lm_speculates:
            return mlx_lm_plain(subject.model, prompt, tokens, subject.stop_ids, temperature)
        return mlx_lm_speculative(
            subject.model, subject.draft, prompt, tokens, subject.stop_ids, temperature, window
        )

    return side


def _our_batch(subject: Subject, prompts: list[tuple[int, ...]], tokens: int) -> Side:
    asked = [request(prompt, tokens) for prompt in prompts]
    return lambda seed: engine(subject.loop, asked)


def _their_batch(subject: Subject, prompts: list[tuple[int, ...]], tokens: int) -> Side:
    return lambda seed: mlx_lm_batch(subject.model, prompts, tokens)
