"""`omlx rm MODEL`: delete a model's files, from the hub's cache or from the home folder."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from urllib.parse import quote

from omlx.catalog import sentence
from omlx.cli.arguments import configured, find_models
from omlx.cli.client import Client
from omlx.cli.output import size
from omlx.cli.serve.address import find_servers
from omlx.errors import ConfigError, ModelError, NotFound
from omlx.models.catalog.catalog import LATEST, Catalog
from omlx.models.catalog.discovery import HUB_CACHE, hub_root, repository_of
from omlx.models.catalog.registry import ModelEntry
from omlx.models.hub.job import delete_model
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group, Settings


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODEL", help=sentence("cli.rm.model", {}))
    parser.add_argument("--yes", action="store_true", help=sentence("cli.rm.yes", {}))
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
    live = configured(arguments)
    settings = live.current.resolve().settings
    catalog = Catalog(find_models([], live.current).scan(), live)
    entry = _named(catalog, arguments.target)
    if entry.source != HUB_CACHE and not _is_own(entry.path, settings.home):
        raise ModelError("rm.elsewhere", model=entry.id, path=str(entry.path))
    inside = [other.id for other in catalog.registry.entries if entry.path in other.path.parents]
    if inside:
        models = ", ".join(inside)
        raise ModelError("rm.holds", model=entry.id, models=models, path=str(entry.path))
    params = {"model": entry.id, "size": size(entry.size_bytes), "path": str(entry.path)}
    if not arguments.yes and not _confirmed(sentence("cli.rm.question", params)):
        return 1
    _unload(entry.id, settings)
    _delete(entry, settings.home)
    sys.stdout.write(sentence("cli.rm.deleted", params) + "\n")
    return 0


def _named(catalog: Catalog, name: str) -> ModelEntry:
    """Return the model of that name: no profile's, and no pattern's of `model_map`.

    Raises NotFound.
    """
    entry = catalog.entry(name)
    if name.removesuffix(LATEST) not in catalog.names_of(entry):
        raise NotFound("model.not_found", param="model", model=name)
    return entry


def _is_own(path: Path, home: Path) -> bool:
    """Return whether a folder lies among the home folder's models, links followed."""
    models = home / "models"
    return models in path.parents and path.resolve().is_relative_to(models.resolve())


def _confirmed(question: str) -> bool:
    """Ask on a terminal. Raises ConfigError without one."""
    if not sys.stdin.isatty():
        raise ConfigError("rm.unconfirmed")
    try:
        return input(f"{question} ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _unload(model: str, settings: Settings) -> None:
    """Unload the model from every running server."""
    for server in find_servers(settings.home):
        client = Client(server.url, settings.api_key)
        if any(card["id"] == model and card["loaded"] for card in client.get("/v1/models")["data"]):
            client.post(f"/v1/models/{quote(model)}/unload")


def _delete(entry: ModelEntry, home: Path) -> None:
    """Delete a model's folder. Raises ModelError."""
    if entry.source == HUB_CACHE:
        delete_model(home, hub_root(os.environ), entry.id)
        return
    try:
        # The files of a snapshot are links to the rest of the repository.
        shutil.rmtree(repository_of(entry.path) or entry.path)
    except OSError as error:
        detail = error.strerror or str(error)
        raise ModelError("pull.not_deleted", repository=entry.id, detail=detail) from error
