"""A config judged against the headers of the weights, before anything is built from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.errors import ModelError

MIN_COUNT: Final = 256
"""Counts up to this are cheap to build, even if the weights turn out not to match."""

_COUNTS: Final = re.compile(r"n(um)?_(\w+_)?(layers?|loops)|altup_num_inputs")
"""Keys that say how many modules a model is built of; each module has weights."""


def check_counts(config: Mapping[str, Any], tensors: int) -> None:
    """Raise ModelError for a config with more layers than the weights have tensors.

    Building a model takes time and memory for each of its modules, and cannot be interrupted.
    """
    most = max(tensors, MIN_COUNT)
    for key, value in _fields(config):
        if isinstance(value, int) and value > most and _COUNTS.fullmatch(key):
            raise ModelError("model.config_counts", key=key, value=value, tensors=tensors)


def _fields(config: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield every key and value of a config, those of nested objects too."""
    pending: list[Mapping[str, Any]] = [config]
    while pending:
        for key, value in pending.pop().items():
            yield key, value
            if isinstance(value, Mapping):
                pending.append(value)
