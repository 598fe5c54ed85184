"""From a parsed command line to the configuration and the models named."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx.cli.serve.address import running
from omlx.errors import ConfigError
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.discovery import Discovery, Folder, discovery
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool.speculation import check_value, strategy_of
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, cli_layer, environment_layer, resolve
from omlx.settings.schema import Settings, table
from omlx.settings.store import Store


def configured(arguments: Namespace, *, rename_broken: bool = False) -> LiveConfiguration:
    """Return a command's configuration: flags, environment, settings files.

    Reports ignored files on standard error; `rename_broken` (requires that no server runs) first
    renames unparsable ones. Raises ConfigError for invalid settings.
    """
    run = (cli_layer(arguments), environment_layer(os.environ))
    home = resolve(run).settings.home
    if not home.is_absolute():  # no HOME, and no entry for this user
        raise ConfigError("config.home_unknown", where=table()["home"].variable, value=str(home))
    store = Store(home, check_value)
    for note in store.read(rename_broken=rename_broken).notes:
        sys.stderr.write(f"omlx: {note.message}\n")
    configuration = LiveConfiguration(run, store)
    strategy_of(configuration.current.resolve())
    return configuration


def local_catalog(configuration: LiveConfiguration, *names: str) -> Catalog:
    """Return the catalog of all models: folders among `names` first, those of servers last.

    The servers are those running with the same home folder: their models have the same names here.
    """
    settings = configuration.current.resolve().settings
    served = (folder for server in running(settings.home) for folder in server.folders)
    found = _discovery((*_folders(names), *settings.model_dir, *served), settings)
    return Catalog(found.scan(), configuration)


def find_model(name: str, configuration: LiveConfiguration) -> ModelEntry:
    """Return the local model `name`, an id or a folder. Raises NotFound or ModelError."""
    return local_catalog(configuration, name).resolve(model_id(name))


def _discovery(folders: Iterable[Path], settings: Settings) -> Discovery:
    model_dir = tuple(dict.fromkeys(folders))
    return discovery(settings.model_copy(update={"model_dir": model_dir}), os.environ)


def _folders(names: Sequence[str]) -> list[Path]:
    return [folder for folder in map(_folder, names) if folder is not None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Local models with configuration, and the id of the model to load at start.

    `discover` repeats the discovery in the same `folders`.
    """

    catalog: Catalog
    model: str | None
    discover: Callable[[], Registry]
    folders: tuple[Path, ...]


def select(model: str | None, configuration: LiveConfiguration) -> Selection:
    """Find the models named on the command line by id or folder; folders are searched first.

    Raises NotFound or ModelError for `model`. A missing or unusable draft does not prevent a start.
    """
    names = [] if model is None else [model]
    run = []
    for layer in configuration.current.run:
        values = dict(layer.values)
        if values.get("draft_model"):
            draft = str(values["draft_model"])
            names.append(draft)
            values["draft_model"] = model_id(draft)
        run.append(Layer(layer.source, values))
    settings = configuration.current.resolve().settings
    folders = (*_folders(names), *settings.model_dir)
    find = _discovery(folders, settings)
    registry = find.scan()
    if model is not None:
        model = Catalog(registry, configuration).resolve(model_id(model)).id
    live = LiveConfiguration(tuple(run), configuration.store)
    return Selection(Catalog(registry, live, model), model, find.scan, folders)


def model_id(name: str) -> str:
    """Return the id of a model named by folder; other names unchanged."""
    folder = _folder(name)
    if folder is None:
        return name
    return next((model for model, _ in Folder("", folder).models()), name)


def _folder(name: str) -> Path | None:
    """Return `name` as a folder if written as a path."""
    path = os.path.expanduser(name)
    if name.startswith((".", "/", "~")) and os.path.isdir(path):
        return Path(path).absolute()
    return None
