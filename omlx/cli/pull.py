"""`omlx pull MODEL`: fetch a model with the draft that its package declares. What is here already is only checked."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import replace

from huggingface_hub.utils.tqdm import disable_progress_bars

from omlx.catalog import sentence
from omlx.cli.columns import size
from omlx.cli.configured import configured
from omlx.errors import Reason
from omlx.models.catalog.discovery import Registry, discover
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.places import HUB_CACHE
from omlx.models.catalog.reference import Reference, find_draft
from omlx.models.package.compatibility import checkpoint_mismatch, draft_problem
from omlx.models.package.hub import pull
from omlx.models.package.package import DraftModel, usable_package
from omlx.models.pool.speculation_config import FETCHABLE
from omlx.settings.resolve import add_flags
from omlx.settings.schema import Group, Settings


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODEL", help=sentence("cli.pull.model", {}))
    parser.add_argument("--revision", metavar="REVISION", help=sentence("cli.pull.revision", {}))
    parser.add_argument(
        "--no-draft", dest="alone", action="store_true", help=sentence("cli.pull.no_draft", {})
    )
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
    if not sys.stderr.isatty():
        disable_progress_bars()
    settings = configured(arguments).current.resolve().settings
    reference = Reference.parse(arguments.target)
    if arguments.revision is not None:
        reference = replace(reference, revision=arguments.revision)
    target = _bring(reference, settings)
    if not arguments.alone:
        _bring_draft(target, settings)
    return 0


def _bring(reference: Reference, settings: Settings) -> ModelEntry:
    """The model, fetched unless a place other than the hub's cache has it. Raises ModelError."""
    entry = find_draft(str(reference), _models(settings))
    if isinstance(entry, Reason) or entry.status is not Status.USABLE or entry.source == HUB_CACHE:
        sys.stdout.write(sentence("cli.pull.begins", {"model": str(reference)}) + "\n")
        sys.stdout.flush()
        directory, notes = pull(reference)
        _say(notes)
        entry = find_draft(str(reference), _models(settings))
        if isinstance(entry, Reason):
            entry = ModelEntry(reference.repository, directory, HUB_CACHE)
    params = {"model": entry.id, "path": str(entry.path), "size": size(entry.size_bytes)}
    sys.stdout.write(sentence("cli.pull.here", params) + "\n")
    return entry


def _bring_draft(target: ModelEntry, settings: Settings) -> None:
    """What the package declares. A draft that cannot be used is said, and is no failure: the model is here."""
    package = usable_package(target.path)
    reasons = [reason for reason in (package.reason, *package.warnings) if reason is not None]
    if isinstance(package.declared, DraftModel):
        reference = package.declared.draft
        found = find_draft(str(reference), _models(settings))
        reason = found if isinstance(found, Reason) else checkpoint_mismatch(target, found)
        if reference.on_hub and (reason is None or reason.code in FETCHABLE):
            found = _bring(reference, settings)
        reason = found if isinstance(found, Reason) else draft_problem(target, found)
        reasons += [reason] if reason is not None else []
    _say(reasons)


def _say(reasons: Iterable[Reason]) -> None:
    for reason in reasons:
        sys.stderr.write(f"omlx: {reason.message}\n")


def _models(settings: Settings) -> Registry:
    return discover(settings, os.environ)
