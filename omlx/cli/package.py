"""`omlx package write|check|show MODEL`: what a model's package declares about speculation, and whether it works here.

Needs neither a terminal nor a running server. Exit status 2: refused, and nothing was written.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from omlx.catalog import sentence
from omlx.cli.columns import columns
from omlx.cli.configured import configured
from omlx.cli.fetching import how_to_fetch
from omlx.cli.named import look_in, named
from omlx.errors import BadRequest, ModelError, Reason
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.reference import find_draft
from omlx.models.package.compatibility import draft_problem
from omlx.models.package.package import (
    DraftModel,
    WindowPolicy,
    read_package,
    strategy_record,
    window_from,
)
from omlx.models.package.write_package import (
    check_package,
    declare_draft,
    window_from_bench,
    write_package,
)
from omlx.models.pool.speculation_config import resolve_speculation
from omlx.models.pool.speculation_status import speculation_record
from omlx.settings.configuration import Configuration
from omlx.settings.resolve import add_flags
from omlx.settings.schema import Group


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is spoken of, among all that are here."""

    entry: ModelEntry
    registry: Registry
    configuration: Configuration


def add_arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions: dict[str, Callable[[Namespace, Subject], None]] = {
        "write": _write,
        "check": _check,
        "show": _show,
    }
    for name, action in actions.items():
        text = sentence(f"cli.package.{name}.help", {})
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(action=action, draft=None)
        command.add_argument("target", metavar="MODEL", help=sentence("cli.package.model", {}))
        if name == "write":
            command.add_argument(
                "--draft", metavar="D", required=True, help=sentence("cli.package.draft", {})
            )
            command.add_argument("--window", metavar="W", help=sentence("cli.package.window", {}))
            command.add_argument(
                "--from-bench",
                metavar="FILE",
                type=Path,
                help=sentence("cli.package.from_bench", {}),
            )
            command.add_argument("--name", help=sentence("cli.package.name", {}))
        if name == "show":
            command.add_argument(
                "--json", action="store_true", help=sentence("cli.models.json", {})
            )
        add_flags(command, [Group.MODELS])


def run(arguments: Namespace) -> int:
    configuration = configured(arguments).current
    names = [arguments.target] if arguments.draft is None else [arguments.target, arguments.draft]
    ids, registry = named(names, configuration)
    if arguments.draft is not None:
        arguments.draft = ids[1]
    arguments.action(arguments, Subject(registry.find(ids[0]), registry, configuration))
    return 0


def _write(arguments: Namespace, subject: Subject) -> None:
    window, told = _window(arguments.window, arguments.from_bench)
    declared = declare_draft(subject.entry, arguments.draft, window, subject.registry)
    _check_in_sight(declared, subject)
    if arguments.name is not None and not re.fullmatch(r"[\w.-]+", arguments.name):
        raise BadRequest("package.name", param="name", name=arguments.name)
    name = arguments.name or declared.draft.repository.rpartition("/")[2].lower()
    path = write_package(subject.entry.path, declared, name)
    told = [sentence("cli.package.written", {"file": path, "draft": str(declared.draft)}), *told]
    sys.stdout.write("".join(f"{line}\n" for line in told))


def _check_in_sight(declared: DraftModel, subject: Subject) -> None:
    """A folder that was named by its path is known to this command alone. Raises ModelError."""
    draft = str(declared.draft)
    found = find_draft(draft, subject.registry)
    if isinstance(found, ModelEntry) and isinstance(
        find_draft(draft, look_in([], subject.configuration)()), Reason
    ):
        raise ModelError("draft.out_of_sight", param=None, draft=draft, path=str(found.path))


def _window(text: str | None, bench: Path | None) -> tuple[WindowPolicy | None, list[str]]:
    """The window to declare, and who says so. A benchmark is read where `--window` wins, too: a wrong one is refused.

    Raises ModelError.
    """
    chosen = window_from(text) if text is not None else None
    measured = window_from_bench(bench) if bench is not None else None
    window = chosen or measured
    if window is None:
        return None, []
    source = "--window" if chosen is not None else bench
    told = [sentence("cli.package.window_taken", {"window": str(window), "source": source})]
    if chosen is not None and measured is not None:
        told.append(
            sentence("cli.package.window_passed_over", {"window": str(measured), "file": bench})
        )
    return window, told


def _check(arguments: Namespace, subject: Subject) -> None:
    package = check_package(subject.entry, subject.registry)
    for warning in package.warnings:
        sys.stderr.write(f"omlx: {warning.message}\n")
    code = "cli.package.well" if package.declared is not None else "cli.package.nothing"
    sys.stdout.write(sentence(code, {"model": subject.entry.id, "name": package.default}) + "\n")


def _show(arguments: Namespace, subject: Subject) -> None:
    package = read_package(subject.entry.path)
    found = resolve_speculation(subject.entry, subject.registry, subject.configuration)
    if (
        found.active_draft is not None
        and (reason := draft_problem(subject.entry, found.active_draft)) is not None
    ):
        found = replace(found, draft=None, reason=reason)
    record = speculation_record(found)
    declared = None if package.declared is None else strategy_record(package.declared)
    if arguments.json:
        drafters = list(found.drafters)
        whole = {
            "model": subject.entry.id,
            "declares": declared,
            "drafters": drafters,
            "speculation": record,
        }
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
        return
    rows = [("strategy", str(found.strategy), found.sources["speculation"].value)]
    rows.append(("drafters", ", ".join(found.drafters) or "–", ""))
    drafting = found.active_draft.id if found.active_draft is not None else "–"
    rows.append(("draft", drafting, found.sources["draft_model"].value))
    length = found.draft_length
    rows.append(("window", f"{length.initial}, {length.min} to {length.max}", ""))
    lines = [
        reason.message for reason in (found.no_draft_reason, *found.warnings) if reason is not None
    ]
    if found.missing_draft is not None:
        lines.append(how_to_fetch(found.missing_draft))
    if isinstance(package.declared, DraftModel):
        rows.insert(0, ("declared", str(package.declared.draft), package.default or ""))
    sys.stdout.write(columns(rows) + "".join(f"{line}\n" for line in lines))
