"""Whether two sides said the same. Where they first differ, how near a tie it was: kernels round by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from omlx.bench.measure import Measured, Run
from omlx.bench.result import Difference, Exactness
from omlx.bench.subject import Subject
from omlx.bench.suites import Settings, plain_reference


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


def _answers(runs: Iterable[Run]) -> list[tuple[int, ...]]:
    return [tokens for run in runs for tokens in run.tokens]
