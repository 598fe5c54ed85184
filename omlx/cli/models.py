"""`omlx models`: every model on this machine; for unusable ones, the reason."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Final

from omlx.catalog import sentence
from omlx.cli.arguments import configured, find_models
from omlx.cli.output import BOLD, columns, size, styled
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.registry import ModelEntry, Registry, Status
from omlx.models.library.choose import Library
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group, Scope
from omlx.terminal_text import escaped

_COLUMNS: Final = ("model", "source", "size", "quantization", "family")


def add_arguments(parser: ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=sentence("cli.models.json", {}))
    form.add_argument("--ids", action="store_true", help=sentence("cli.models.ids", {}))
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
    live = configured(arguments)
    registry = find_models([], live.current).scan()
    catalog = Catalog(registry, live)
    if arguments.json:
        json.dump([_record(entry, catalog) for entry in registry.entries], sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif arguments.ids:
        sys.stdout.write("".join(f"{escaped(name)}\n" for name in catalog.ids))
    else:
        sys.stdout.write(_listing(registry, catalog))
    return 0


def _listing(registry: Registry, catalog: Catalog) -> str:
    """Return tables of usable models with profiles, of drafters, of others with reasons."""
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
        record["reason"] = {
            "code": reason.code,
            "params": reason.params,
            "message": reason.message,
        }
    return record
