"""Samples of a trial with given speed-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omlx.measure.sample import Sample
from omlx.measure.samples import Place, Samples, TrialConfiguration
from omlx.measure.texts import Kind

DRAFT, OTHER = "org/small", "org/tiny"
AUTO, ALONE = TrialConfiguration("auto", DRAFT), TrialConfiguration("draft", DRAFT)
KINDS = (Kind.CODE, Kind.PROSE)
TOKENS = tuple(range(101))


def answer(tokens: tuple[int, ...], seconds: float = 1.0) -> Sample:
    return Sample((tokens,), len(tokens) - 1, seconds)


def measured(ratios: Mapping[TrialConfiguration, Mapping[Kind, Sequence[float]]]) -> Samples:
    """Return samples of these speed-ups over plain decoding at 100 tokens per second."""
    samples = Samples()
    for configuration, by_kind in ratios.items():
        for kind, values in by_kind.items():
            for number, ratio in enumerate(values):
                place = Place(number, DRAFT, kind, configuration)
                samples.by_place[place.plain] = answer(TOKENS, 1.0)
                samples.by_place[place] = answer(TOKENS, 1.0 / ratio)
    return samples


def steady(code: float, prose: float) -> dict[Kind, list[float]]:
    """Return three speed-ups of each kind that are close to each other."""
    return {
        Kind.CODE: [code, code * 1.02, code * 0.99],
        Kind.PROSE: [prose, prose * 1.01, prose * 0.98],
    }
