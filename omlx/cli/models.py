"""`omlx models`: everything that was found, usable or not, and why not."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace

from omlx.catalog import sentence
from omlx.cli.columns import columns, size
from omlx.cli.configured import configured
from omlx.models.catalog.discovery import Registry, discover
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.settings.resolve import add_flags
from omlx.settings.schema import Group


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=sentence("cli.models.json", {}))
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
    registry = discover(configured(arguments).current.resolve().settings, os.environ)
    if arguments.json:
        json.dump([_record(entry) for entry in registry.entries], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(listing(registry))
    return 0


def listing(registry: Registry) -> str:
    """A table of the usable models, then the others with their reasons."""
    if not registry.entries:
        return sentence("cli.models.none", {}) + "\n"
    usable = [_row(entry) for entry in registry.usable]
    others = [_row(entry) for entry in registry.entries if entry.status is not Status.USABLE]
    text = columns(usable)
    if others:
        text += f"\n{sentence('cli.models.others', {})}\n{columns(others)}"
    return text


def _row(entry: ModelEntry) -> tuple[str, ...]:
    if entry.reason is not None:
        return entry.id, entry.source, sentence(entry.reason.code, entry.reason.params)
    return (
        entry.id,
        entry.source,
        size(entry.size_bytes),
        entry.quantization or "dense",
        entry.model_type or "",
    )


def _record(entry: ModelEntry) -> dict[str, object]:
    record: dict[str, object] = {
        "id": entry.id,
        "path": str(entry.path),
        "source": entry.source,
        "status": entry.status.value,
        "size_bytes": entry.size_bytes,
        "model_type": entry.model_type,
        "quantization": entry.quantization,
    }
    if entry.reason is not None:
        reason = entry.reason
        record["reason"] = {
            "code": reason.code,
            "params": reason.params,
            "message": sentence(reason.code, reason.params),
        }
    return record
