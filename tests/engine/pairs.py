"""Pairwise covers: few cases in which every two values of different parameters meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]


def pairwise(parameters: Mapping[str, Sequence[Any]]) -> list[Case]:
    """A small list of cases covering every pair of values.

    Greedy, one parameter at a time; always the same list.
    """
    names = list(parameters)
    missing: dict[Pair, None] = {}
    for first, second in combinations(names, 2):
        for i, j in product(range(len(parameters[first])), range(len(parameters[second]))):
            missing[(first, i), (second, j)] = None
    cases = []
    while missing:
        seed = next(iter(missing))
        chosen = dict(seed)
        for name in (name for name in names if name not in chosen):
            chosen[name] = max(
                range(len(parameters[name])), key=lambda value: _gain(chosen, name, value, missing)
            )
        for pair in combinations([(name, chosen[name]) for name in names], 2):
            missing.pop(pair, None)
        cases.append({name: parameters[name][chosen[name]] for name in names})
    return cases


def in_turn(parameters: Mapping[str, Sequence[Any]]) -> list[Case]:
    """A pairwise cover of all parameters but the first, whose values take turns.

    A slow lane with the full product has the other pairs.
    """
    (first, values), *others = parameters.items()
    cover = pairwise(dict(others))
    turns = range(max(len(cover), len(values)))
    return [{first: values[i % len(values)], **cover[i % len(cover)]} for i in turns]


def full_product(parameters: Mapping[str, Sequence[Any]]) -> list[Case]:
    return [dict(zip(parameters, values, strict=True)) for values in product(*parameters.values())]


def _gain(chosen: dict[str, int], name: str, value: int, missing: dict[Pair, None]) -> int:
    """How many missing pairs `value` would cover with what is chosen already."""
    here = (name, value)
    return sum(((there, here) in missing) + ((here, there) in missing) for there in chosen.items())
