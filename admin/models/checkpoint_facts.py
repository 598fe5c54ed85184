"""What a checkpoint's config and headers say of it, for the list of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError, Reason
from omlx.models.catalog.context import declared_context, longest_context
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import read_config
from omlx.models.catalog.weight_files import count_parameters, weight_files
from omlx.models.eyes.sight import read_blind_reason

_GROUP_SIZE: Final = 64
"""Quantized values for each scale, where a config does not say."""

TEXT_ALONE: Final = Reason("vision.off.text")


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """`context_length` in tokens, `longest_context` what a user may raise it to; None for what the
    files do not say. `blind`: why the model does not read images."""

    parameters: int | None = None
    context_length: int | None = None
    blind: Reason | None = TEXT_ALONE
    longest_context: int | None = None


NO_FACTS: Final = CheckpointFacts()


class FactsReader:
    """Reads a checkpoint once, and again if the size of its weights has changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int], CheckpointFacts] = {}

    def get(self, entry: ModelEntry) -> CheckpointFacts:
        """Read the facts of a usable model; others have none. Reads files; never raises."""
        if not entry.usable:
            return NO_FACTS
        key = (entry.path, entry.size_bytes)
        if key not in self._known:
            self._known[key] = _read(entry.path)
        return self._known[key]


def _read(directory: Path) -> CheckpointFacts:
    try:
        config = read_config(directory, "config.json")
        parameters = count_parameters(weight_files(directory), _group_size(config))
    except ModelError:  # the reason is shown when the model is loaded
        return NO_FACTS
    declared = declared_context(config)
    longest = None if declared is None else longest_context(config, 0)
    return CheckpointFacts(parameters, declared, read_blind_reason(directory), longest)


def _group_size(config: Mapping[str, Any]) -> int:
    quantization = config.get("quantization")
    size = quantization.get("group_size") if isinstance(quantization, Mapping) else None
    return size if isinstance(size, int) else _GROUP_SIZE
