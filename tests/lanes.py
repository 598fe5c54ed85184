"""Lanes of parameters: the quick ones run by default, all of them with `make test-full`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

slow = True
"""Whether slow tests run, too."""


def few(values: Iterable[Any], *quick: Any, every: int = 0) -> list[Any]:
    """Return all values as parameters, of which those not in `quick` are slow; if `every` is given,
    the first of so many is quick, too.

    A tuple has the values of several parameters. A quick value that is no value is an error.
    """
    values = list(values)
    quick = (*quick, *(values[::every] if every else ()))
    missing = [value for value in quick if value not in values]
    assert not missing, f"not among the values: {missing}"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in quick else pytest.mark.slow,
        )
        for value in values
    ]
