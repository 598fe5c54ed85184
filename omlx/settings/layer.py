"""Sources of settings in their order of precedence, and the values that one source sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from omlx.draft_length import DraftLength
from omlx.errors import ConfigError
from omlx.settings.schema import Value


class Source(StrEnum):
    """Source of a value; earlier ones take precedence. A request precedes all, and is no layer.

    The profile comes first: the request names it.
    """

    PROFILE = "profile"
    CLI = "cli"
    ENVIRONMENT = "environment"
    MODEL = "model"
    GLOBAL = "global"
    PACKAGE = "package"
    BUILT_IN = "built_in"

    @property
    def rank(self) -> int:
        """0 for the source of the highest precedence."""
        return list(Source).index(self)


@dataclass(frozen=True, slots=True)
class Layer:
    """The values that one source sets."""

    source: Source
    values: Mapping[str, Value]


def check_bounds(layer: Layer, where: str) -> None:
    """Raise ConfigError if the draft lengths of one source contradict each other.

    Between two sources that is no error: the one of higher precedence bounds the other.
    """
    contradiction = DraftLength.parse(layer.values).contradiction
    if contradiction is not None:
        raise ConfigError("config.bounds", where=where, **contradiction._asdict())
