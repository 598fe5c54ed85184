"""Which models the request that is being answered may use, by the patterns of its API key.

A variable of the context, not an argument: every path that resolves a model's name obeys it, and a
new one cannot forget it. Outside of such a request there is no restriction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Final

_PATTERNS: Final[ContextVar[Sequence[str] | None]] = ContextVar("omlx_models", default=None)


@contextmanager
def restricted_to(patterns: Sequence[str] | None) -> Iterator[None]:
    """Restrict the block to models that a pattern matches; None: no restriction."""
    token = _PATTERNS.set(patterns)
    try:
        yield
    finally:
        _PATTERNS.reset(token)


def is_restricted() -> bool:
    return _PATTERNS.get() is not None


def may_use(names: Iterable[str]) -> bool:
    """Return whether a model with these names may be used."""
    patterns = _PATTERNS.get()
    return patterns is None or matches(names, patterns)


def matches(names: Iterable[str], patterns: Sequence[str]) -> bool:
    """Return whether a pattern, such as `org/*`, matches one of the names."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
