"""Models on this machine: `omlx models` lists them, `omlx rm MODEL` deletes the files of one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from omlx.catalog import escaped, sentence
from omlx.cli.arguments import configured, local_catalog
from omlx.cli.client import Client
from omlx.cli.output import BOLD, columns, size, styled
from omlx.cli.serve.address import find_servers
from omlx.errors import ConfigError, ModelError, NotFound, os_errors
from omlx.models.catalog.catalog import LATEST, Catalog
from omlx.models.catalog.discovery import HUB_CACHE, hub_root, repository_of
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.hub.job import delete_model
from omlx.models.library.choose import Library
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group, Scope, Settings

_COLUMNS: Final = ("model", "source", "size", "quantization", "family")


def models_arguments(parser: ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=sentence("cli.models.json", {}))
    form.add_argument("--ids", action="store_true", help=sentence("cli.models.ids", {}))
    add_flags(parser, [Group.MODELS])


def models(arguments: Namespace) -> int:
    catalog = local_catalog(configured(arguments))
    if arguments.json:
        records = [_record(entry, catalog) for entry in catalog.registry.entries]
        json.dump(records, sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif arguments.ids:
        sys.stdout.write("".join(f"{escaped(name)}\n" for name in catalog.ids))
    else:
        sys.stdout.write(_listing(catalog))
    return 0


def _listing(catalog: Catalog) -> str:
    """Return tables of usable models with profiles, of drafters, of others with reasons."""
    registry = catalog.registry
    if not registry.entries:
        return sentence("cli.models.none", {}) + "\n"
    unusable = [entry for entry in registry.entries if entry.status is not Status.USABLE]
    drafters = [_row(entry) for entry in unusable if entry.drafter is not None]
    others = [_row(entry) for entry in unusable if entry.drafter is None]
    rows = []
    for entry in registry.usable:
        rows.append(_row(entry))
        rows += [(profile.id, Scope.PROFILE.value) for profile in catalog.profiles(entry.id)]
    head = [sentence(f"cli.models.column.{name}", {}) for name in _COLUMNS]
    text = columns(rows, head)
    for title, listed in (("cli.models.drafters", drafters), ("cli.models.others", others)):
        if listed:
            text += f"\n{styled(sentence(title, {}), BOLD)}\n{columns(listed)}"
    return text


def _row(entry: ModelEntry) -> tuple[str, ...]:
    if entry.reason is not None:
        return entry.id, entry.source, entry.reason.message
    quantization, family = entry.quantization or "dense", entry.model_type or ""
    library = "" if entry.library in (None, Library.MLX_LM) else entry.library.label
    return entry.id, entry.source, size(entry.size_bytes), quantization, family, library


def _record(entry: ModelEntry, catalog: Catalog) -> dict[str, object]:
    record: dict[str, object] = {
        "id": entry.id,
        "path": str(entry.path),
        "source": entry.source,
        "status": entry.status.value,
        "size_bytes": entry.size_bytes,
        "model_type": entry.model_type,
        "quantization": entry.quantization,
        "library": entry.library,
        "drafter": entry.drafter,
    }
    if profiles := catalog.profiles(entry.id):
        record["profiles"] = [profile.id for profile in profiles]
    reason = entry.reason
    if reason is not None:
        record["reason"] = reason.to_json()
    return record


def rm_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODEL", help=sentence("cli.rm.model", {}))
    parser.add_argument("--yes", action="store_true", help=sentence("cli.rm.yes", {}))
    add_flags(parser, [Group.MODELS])


def rm(arguments: Namespace) -> int:
    live = configured(arguments)
    settings = live.current.resolve().settings
    catalog = local_catalog(live)
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
    if entry.source == HUB_CACHE:
        delete_model(settings.home, hub_root(os.environ), entry.id)
    else:
        with os_errors(ModelError, "pull.not_deleted", repository=entry.id):
            # The files of a snapshot are links to the rest of the repository.
            shutil.rmtree(repository_of(entry.path) or entry.path)
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
