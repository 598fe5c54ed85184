"""Model catalog: resolves the name in a request to a model directory.

Precedence: id, alias, short name; any of these with a profile (`name:profile`); the same without
Ollama's tag `latest`; then the patterns of `model_map` (`claude-*=org/name`). Aliases are unique
when set; an alias that became ambiguous later is refused, never guessed.

A context variable restricts a request to the model patterns of its API key, on every path that
resolves names. Outside of such a request there is no restriction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from omlx.draft_length import DraftLength
from omlx.errors import BadRequest, ConfigError, ModelError, NotFound, OmlxError, Param, Reason
from omlx.models.catalog.registry import UNKNOWN, ModelEntry, Registry, Status, check_usable
from omlx.models.library.choose import choose
from omlx.settings.configuration import Configuration, LiveConfiguration
from omlx.settings.layers import Layer, Source, resolve
from omlx.settings.schema import Settings, Value
from omlx.settings.store import check_profile_name

_LIBRARY_REASONS: Final = frozenset(
    {"model.library_extra", "model.remote_code", "model.rope", "model.unsupported"}
)
"""Codes of `choose`, whose answer depends on a model's settings."""
MAX_FALLBACKS: Final = 16
_SHOWN: Final = 100
"""Characters of a requested name in reasons."""
LATEST: Final = ":latest"
"""Tag that Ollama's API and clients add to names without a tag."""

log = logging.getLogger("omlx.models")


class Catalog:
    """Registry of models on disk, with the names given by settings.

    `registry` is replaced as a whole after a rescan, the snapshot of `live` after a change of
    settings. `default` is the command line's default model. `fallbacks`: the last names for which
    the fallback model answered, and why.
    """

    def __init__(
        self, registry: Registry, live: LiveConfiguration, default: str | None = None
    ) -> None:
        self.registry = registry
        self.live = live
        self.fallbacks: dict[str, Reason] = {}
        self._default = default
        self._names = _Names(registry, live.current)

    @property
    def configuration(self) -> Configuration:
        return self.live.current

    @property
    def default(self) -> str | None:
        """Name of the default model: from the command line, else from settings."""
        return self._default or self._current_names().default

    def resolve(self, name: str | None = None, *, fallback: str | None = None) -> ModelEntry:
        """Return the usable model called `name`; None means the default model, else `fallback`.

        Raises BadRequest without any name, NotFound for unknown or ambiguous names, ModelError with
        the reason of an unusable model.
        """
        chosen = name or self.default or fallback
        if chosen is None or not (name or self._offers(chosen)):
            raise BadRequest("model.none", param="model")
        return check_usable(self.entry(chosen))

    def fallback(self, asked: str | None, error: OmlxError) -> tuple[str, Reason]:
        """Return the name of the model that answers for `asked`, and the reason, from `error`.

        Raises `error` without another model that can be used.
        """
        name = self.configuration.resolve().settings.fallback_model
        if asked is None or name is None:
            raise error
        try:
            model = self.resolve(name).id
        except (NotFound, ModelError):
            raise error from None
        failed = None
        with suppress(NotFound):
            failed = self.entry(asked).id
        if failed == model:
            raise error
        names: dict[str, Param] = {"asked": asked[:_SHOWN], "model": model, "code": error.code}
        return name, Reason("model.fallback", names | {"reason": error.message})

    def note_fallback(self, reason: Reason) -> None:
        """Remember and log that the fallback model is loaded for a request."""
        names = {name: reason.params[name] for name in ("asked", "model", "code")}
        log.warning("model fallback", extra={"fields": names})
        asked = str(names["asked"])
        self.fallbacks.pop(asked, None)
        self.fallbacks[asked] = reason
        if len(self.fallbacks) > MAX_FALLBACKS:
            del self.fallbacks[next(iter(self.fallbacks))]

    def entry(self, name: str) -> ModelEntry:
        """Return the model called `name`, usable or not. Raises NotFound."""
        return self.permitted(name, lambda known: self._current_names().lookup(known).entry)

    def profile(self, name: str | None = None) -> Profile | None:
        """Return the profile requested by `name` (None: the default); None for a plain model.

        Raises NotFound.
        """
        chosen = name or self.default
        if chosen is None or not (name or self._offers(chosen)):
            return None
        self.entry(chosen)  # raises NotFound if not permitted
        return self._current_names().lookup(chosen).profile

    def profiles(self, model: str) -> Sequence[Profile]:
        return self._current_names().profiles(model)

    @property
    def ids(self) -> list[str]:
        """Names for clients: usable models, each followed by its profiles."""
        ids = []
        for entry in self.registry.usable:
            ids += [entry.id, *(profile.id for profile in self.profiles(entry.id))]
        return ids

    def target(self, name: str) -> ModelEntry:
        """Return the usable model of a `model_map` row: an id, alias or short name.

        Raises NotFound, ModelError.
        """
        return check_usable(
            self.permitted(name, lambda known: self._current_names().named(known).entry)
        )

    def permitted(
        self, name: str, find: Callable[[str], ModelEntry], param: str = "model"
    ) -> ModelEntry:
        """Return the result of `find`, which raises BadRequest for unknown names.

        Restricted requests get NotFound for every other model, existing or not. `param` is the
        request field that holds `name`.
        """
        try:
            entry = find(name)
            if self.allows(entry):
                return entry
        except BadRequest:
            if not is_restricted():
                raise
        raise NotFound("model.not_allowed", param=param, model=name)

    def allows(self, entry: ModelEntry) -> bool:
        patterns = _PATTERNS.get()
        return patterns is None or matches(self.names_of(entry), patterns)

    def _offers(self, default: str) -> bool:
        """Return whether a request without a model may learn the default's name."""
        if not is_restricted():
            return True
        try:
            self.entry(default)
        except NotFound:
            return False
        return True

    def unmatched(self, patterns: Iterable[str]) -> Sequence[str]:
        """Return patterns that match no usable model by any name."""
        names = [name for entry in self.registry.usable for name in self.names_of(entry)]
        return [pattern for pattern in patterns if not matches(names, [pattern])]

    def names_of(self, entry: ModelEntry) -> Sequence[str]:
        """Return id, short name and alias of a model."""
        alias = self._current_names().aliases.get(entry.id)
        return tuple(filter(None, (entry.id, entry.name, alias)))

    def update(self, found: Registry, loaded: Iterable[ModelEntry]) -> None:
        """Replace the registry after a scan.

        Models in memory (`loaded`) whose folders are gone stay listed and can be served.
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
        for entry in entries:
            taken |= {profile.id: entry.id for profile in self.profiles(entry.id)}
        if alias in taken:
            raise ConfigError("config.alias_taken", where="alias", alias=alias, model=taken[alias])

    def check_profile(self, model: str, name: str) -> None:
        """Raise ConfigError unless `name` can be a profile of the model with that id."""
        check_profile_name(name, "name")
        id = f"{model}:{name}"
        if id in self.registry or id in self._current_names().aliases.values():
            raise ConfigError("config.profile_taken", where="name", id=id)

    def _current_names(self) -> _Names:
        names = self._names
        if names.registry is not self.registry or names.configuration is not self.live.current:
            names = self._names = _Names(self.registry, self.live.current)
        return names


class _Named(NamedTuple):
    entry: ModelEntry
    profile: Profile | None = None


class _Names:
    """Names of one immutable revision: a registry and a snapshot of settings."""

    def __init__(self, registry: Registry, configuration: Configuration) -> None:
        settings, stored = configuration.resolve().settings, configuration.stored
        self.registry = registry
        self.configuration = configuration
        self.default = settings.default_model
        named = {model: layer.values.get("alias") for model, layer in stored.models.items()}
        self.aliases = {model: str(alias) for model, alias in named.items() if alias}
        self._rules = [rule.partition("=") for rule in settings.model_map]

    def lookup(self, name: str) -> _Named:
        """Return model and profile of `name`, usable or not. Raises NotFound."""
        name = self._unaliased(name)
        try:
            return self.named(name)
        except NotFound:
            if name.endswith(LATEST):
                return self.lookup(name.removesuffix(LATEST))
            for pattern, _, model in self._rules:
                if fnmatchcase(name, pattern.strip()):
                    return self.named(model.strip())
            raise

    def named(self, name: str) -> _Named:
        """Return the model with that id, alias or short name, or a profile.

        Raises NotFound; for an unknown profile, the error lists the model's names.
        """
        base, colon, wanted = name.rpartition(":")
        try:
            return _Named(self._model(name))
        except NotFound as error:
            if not colon or error.code not in UNKNOWN:
                raise
        entry = self._base(base, name)
        profiles = self.profiles(entry.id)
        for profile in profiles:
            if profile.name == wanted:
                return _Named(entry, profile)
        ids = ", ".join([entry.id, *(profile.id for profile in profiles)])
        raise NotFound("model.no_profile", param="model", model=name, ids=ids)

    def profiles(self, model: str) -> Sequence[Profile]:
        stored = self.configuration.stored.profiles(model)
        return [Profile(model, name, stored[name].values) for name in sorted(stored)]

    def _model(self, name: str) -> ModelEntry:
        return self._configured(self.registry.get(self._unaliased(name)))

    def _base(self, base: str, name: str) -> ModelEntry:
        """Return model `base` of profile `name`. Raises NotFound naming the whole `name`."""
        try:
            return self._model(base)
        except NotFound as error:
            if error.code not in UNKNOWN:
                raise
            raise NotFound(error.code, param="model", **{**error.params, "model": name}) from None

    def _unaliased(self, name: str) -> str:
        """Return the id behind alias `name`; other names unchanged. Raises NotFound if
        ambiguous.
        """
        if name in self.registry:
            return name
        models = [model for model, alias in self.aliases.items() if alias == name]
        if len(models) > 1:
            raise NotFound("model.ambiguous", param="model", model=name, ids=", ".join(models))
        return models[0] if models else name

    def _configured(self, entry: ModelEntry) -> ModelEntry:
        """Return `entry`, usable if its settings choose a library that has its classes."""
        if entry.reason is None or entry.reason.code not in _LIBRARY_REASONS:
            return entry
        settings = self.configuration.resolve(entry.id).settings
        trusted, library = settings.trust_remote_code, settings.library
        classes = choose(entry.files.config, trusted=trusted, library=library)
        if isinstance(classes, Reason):
            return replace(entry, reason=classes)
        return replace(entry, status=Status.USABLE, reason=None, library=classes.library)


@dataclass(frozen=True, slots=True)
class Profile:
    """Named settings of a model: the values of a request take precedence over `values`."""

    model: str
    name: str
    values: Mapping[str, Value]

    @property
    def id(self) -> str:
        """Name for clients, `model:profile`."""
        return f"{self.model}:{self.name}"

    @property
    def settings(self) -> Settings:
        """Settings of the profile, with built-in defaults for the rest."""
        return resolve([Layer(Source.PROFILE, self.values)]).settings

    @property
    def draft_length(self) -> DraftLength:
        """Bounds of the draft length; open if the profile sets none."""
        return DraftLength.parse(self.values)


_PATTERNS: Final[ContextVar[Sequence[str] | None]] = ContextVar("omlx_models", default=None)


@contextmanager
def restricted_to(patterns: Sequence[str] | None) -> Iterator[None]:
    """Restrict the block to models matching `patterns`; None: no restriction."""
    token = _PATTERNS.set(patterns)
    try:
        yield
    finally:
        _PATTERNS.reset(token)


def is_restricted() -> bool:
    return _PATTERNS.get() is not None


def matches(names: Iterable[str], patterns: Sequence[str]) -> bool:
    """Return whether a pattern, such as `org/*`, matches any of the names."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
