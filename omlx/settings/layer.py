"""Who may set a setting, in order of precedence, and what each has set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from omlx.draft_length import DraftLength
from omlx.errors import ConfigError
from omlx.settings.schema import Value


class Source(StrEnum):
    """Who set a value; the first that did wins. A request goes before them all, and is no layer: it
    has fields.
    """

    CLI = "cli"
    ENVIRONMENT = "environment"
    MODEL = "model"
    GLOBAL = "global"
    PACKAGE = "package"
    BUILT_IN = "built_in"

    @property
    def rank(self) -> int:
        """0 for the one that wins over all."""
        return list(Source).index(self)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source sets; it leaves the rest to the next one."""

    source: Source
    values: Mapping[str, Value]


def check_bounds(layer: Layer, where: str) -> None:
    """Raise ConfigError if the lengths of drafts that one source sets contradict each other.

    Between two sources that is no error: the one that wins bounds the other.
    """
    contradiction = DraftLength.parse(layer.values).contradiction
    if contradiction is not None:
        raise ConfigError("config.bounds", where=where, **contradiction._asdict())
