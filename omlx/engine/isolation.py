"""The edge between one row's step and everybody else's: what raises inside ends that row, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def caught(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Exception:
    """What `work` returns, or the exception that it raised, for the caller to hold against the rows at fault."""
    try:
        return work(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 — the one place in the engine where a row's failure is turned into data
        return error
