"""Model names: the one place where the name in a request becomes a model directory.

Precedence: id, alias, short name, the same without Ollama's tag `latest`, then the patterns of
`model_map` (`claude-*=org/name`). An alias is unique when it is set; one that has become ambiguous
since then is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from omlx.errors import BadRequest, ConfigError, NotFound
from omlx.models.catalog import permission
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.registry import Registry, check_usable
from omlx.settings.configuration import Configuration, LiveConfiguration

LATEST: Final = ":latest"
"""The tag that Ollama's API and its clients add to names without one."""


class Catalog:
    """The registry of models on disk with the names that the settings give them.

    `registry` is replaced as a whole after a rescan, the snapshot of `live` after a change of
    settings. `default` is the command line's default model.
    """

    def __init__(
        self, registry: Registry, live: LiveConfiguration, default: str | None = None
    ) -> None:
        self.registry = registry
        self.live = live
        self._default = default
        self._names = _Names(registry, live.current)

    @property
    def configuration(self) -> Configuration:
        """The current snapshot of the settings."""
        return self.live.current

    @property
    def default(self) -> str | None:
        """The default model's name: from the command line, else from the settings."""
        return self._default or self._current_names().default

    def resolve(self, name: str | None = None, *, fallback: str | None = None) -> ModelEntry:
        """Return the usable model called `name`; None means the default model, else `fallback`.

        Raises BadRequest if there is no name at all, NotFound for an unknown or ambiguous one,
        ModelError with the reason of a model that cannot be used.
        """
        chosen = name or self.default or fallback
        if chosen is None:
            raise BadRequest("model.none", param="model")
        try:
            return check_usable(self.entry(chosen))
        except NotFound:
            if name or not permission.is_restricted():
                raise
        raise BadRequest("model.none", param="model")  # a default that the request may not use

    def entry(self, name: str) -> ModelEntry:
        """Return the model called `name`, usable or not. Raises NotFound."""
        return self.permitted(name, self._current_names().lookup)

    def target(self, name: str) -> ModelEntry:
        """Return the usable model that a row of `model_map` names by id, alias or short name.

        Raises NotFound, ModelError.
        """
        return check_usable(self.permitted(name, self._current_names().named))

    def permitted(
        self, name: str, find: Callable[[str], ModelEntry], param: str = "model"
    ) -> ModelEntry:
        """Return the model that `find` finds, raising BadRequest if there is none.

        For a request that may use some models only, raises NotFound for all others, whether they
        exist or not. `param` is the field with the name.
        """
        try:
            entry = find(name)
            if self.allows(entry):
                return entry
        except BadRequest:
            if not permission.is_restricted():
                raise
        raise NotFound("model.not_allowed", param=param, model=name)

    def allows(self, entry: ModelEntry) -> bool:
        """Whether the request that is being answered may use a model."""
        return not permission.is_restricted() or permission.may_use(self._names_of(entry))

    def unmatched(self, patterns: Iterable[str]) -> Sequence[str]:
        """Return the patterns that match no usable model by any of its names."""
        names = [name for entry in self.registry.usable for name in self._names_of(entry)]
        return [pattern for pattern in patterns if not permission.matches(names, [pattern])]

    def _names_of(self, entry: ModelEntry) -> Sequence[str]:
        """Return the names of a model: its id, its short name, and its alias if it has one."""
        alias = self._current_names().aliases.get(entry.id)
        return tuple(filter(None, (entry.id, entry.name, alias)))

    def update(self, found: Registry, loaded: Iterable[ModelEntry]) -> None:
        """Replace the registry by what was found on disk.

        Models in memory (`loaded`) whose folders have gone stay listed: they can be served.
        """
        gone = [entry for entry in loaded if entry.id not in found and not entry.path.is_dir()]
        entries = (*found.entries, *gone)
        if entries != self.registry.entries:
            self.registry = Registry(entries)

    def check_alias(self, alias: str, model: str) -> None:
        """Raise ConfigError unless `alias` can name `model` and nothing else."""
        entries, aliases = self.registry.entries, self._current_names().aliases
        taken = {entry.id: entry.id for entry in entries}
        taken |= {entry.name: entry.id for entry in entries if entry.id != model}
        taken |= {name: other for other, name in aliases.items() if other != model}
        if alias in taken:
            raise ConfigError("config.alias_taken", where="alias", alias=alias, model=taken[alias])

    def _current_names(self) -> _Names:
        """Return the names of this revision of registry and settings."""
        names = self._names
        if names.registry is not self.registry or names.configuration is not self.live.current:
            names = self._names = _Names(self.registry, self.live.current)
        return names


class _Names:
    """The names of one revision: a registry and a snapshot of the settings, both immutable."""

    def __init__(self, registry: Registry, configuration: Configuration) -> None:
        settings = configuration.resolve().settings
        self.registry = registry
        self.configuration = configuration
        self.default = settings.default_model
        self.aliases = _aliases(configuration)
        self._rules = [rule.partition("=") for rule in settings.model_map]

    def lookup(self, name: str) -> ModelEntry:
        """Return the model called `name`, usable or not. Raises NotFound."""
        name = self._unaliased(name)
        try:
            return self._trusted(self.registry.get(name))
        except NotFound:
            if name.endswith(LATEST):
                return self.lookup(name.removesuffix(LATEST))
            for pattern, _, model in self._rules:
                if fnmatchcase(name, pattern.strip()):
                    return self.named(model.strip())
            raise

    def named(self, name: str) -> ModelEntry:
        """Return the model with that id, alias or short name. Raises NotFound."""
        return self._trusted(self.registry.get(self._unaliased(name)))

    def _unaliased(self, name: str) -> str:
        """Return the id of the model whose alias is `name`; any other name as it is."""
        if name in self.registry:
            return name
        models = [model for model, alias in self.aliases.items() if alias == name]
        if len(models) > 1:
            raise NotFound("model.ambiguous", param="model", model=name, ids=", ".join(models))
        return models[0] if models else name

    def _trusted(self, entry: ModelEntry) -> ModelEntry:
        """Return `entry`, as usable where it only needs the trust that the settings give it."""
        if entry.reason is None or entry.reason.code != "model.remote_code":
            return entry
        if not self.configuration.resolve(entry.id).settings.trust_remote_code:
            return entry
        return replace(entry, status=Status.USABLE, reason=None)


def _aliases(configuration: Configuration) -> Mapping[str, str]:
    """Return the alias of each model that has one, by model id."""
    aliases = {}
    for model, layer in configuration.stored.models.items():
        if layer.values.get("alias"):
            aliases[model] = str(layer.values["alias"])
    return aliases
