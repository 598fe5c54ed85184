"""What a request may call a model: its id, an alias that somebody gave it, or the end of its id where that is clear.

An id goes before an alias, an alias before the end of an id, and `model_map` serves names that nobody has. Aliases are
unique against all of them: one that is not is refused when it is set, and one that has become so since names nothing
rather than something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from omlx.engine.types import Reason
from omlx.errors import ConfigError, ModelError, NotFound
from omlx.models.catalog.discovery import Registry, find_mapped
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.settings.configuration import Configuration

_NEEDS_TRUST = "model.remote_code"


def find_model(name: str, registry: Registry, configuration: Configuration) -> ModelEntry:
    """The usable model called `name`. Raises as `Registry.find` does.

    A model that brings code along is usable where the settings trust it.
    """
    own = (
        [model for model, alias in aliases(configuration).items() if alias == name]
        if name not in registry
        else []
    )
    if len(own) > 1:
        raise NotFound("model.ambiguous", param="model", model=name, ids=", ".join(own))
    asked = own[0] if own else name
    try:
        return registry.find(asked)
    except NotFound:
        return find_mapped(asked, registry, configuration.resolve().settings.model_map)
    except ModelError as error:
        if error.code != _NEEDS_TRUST:
            raise
        entry = next(
            entry
            for entry in registry.entries
            if _needs_trust(entry) and asked in (entry.id, entry.name)
        )
        if not configuration.resolve(entry.id).settings.trust_remote_code:
            raise
        return replace(entry, status=Status.USABLE, reason=None)


def aliases(configuration: Configuration) -> Mapping[str, str]:
    """By model, the alias it has been given."""
    given = {
        model: layer.values.get("alias") for model, layer in configuration.stored.models.items()
    }
    return {model: str(alias) for model, alias in given.items() if alias is not None}


def check_alias(alias: str, model: str, registry: Registry, configuration: Configuration) -> None:
    """Raise ConfigError unless `alias` can name `model` and nothing else."""
    taken = {entry.id: entry.id for entry in registry.entries}
    taken |= {entry.name: entry.id for entry in registry.entries if entry.id != model}
    taken |= {given: other for other, given in aliases(configuration).items() if other != model}
    if alias in taken:
        raise ConfigError("config.alias_taken", where="alias", alias=alias, model=taken[alias])


def _needs_trust(entry: ModelEntry) -> bool:
    reason: Reason | None = entry.reason
    return reason is not None and reason.code == _NEEDS_TRUST
