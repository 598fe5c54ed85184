"""`omlx package write|check|show MODEL`: the speculation declared by a model's package.

Needs neither a terminal nor a running server. Exit status 2: refused, and nothing was written.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from omlx.catalog import sentence
from omlx.cli import add_actions
from omlx.cli.arguments import configured, local_catalog, model_id
from omlx.cli.output import columns, download_hint
from omlx.errors import BadRequest, ModelError, Reason
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import (
    DeclaredDraftModel,
    Package,
    WindowPolicy,
    check_package,
    declare_draft,
    read_package,
    strategy_to_json,
    window_from,
    window_from_bench,
    write_package,
)
from omlx.models.catalog.reference import draft_problem, find_draft
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.served import speculation_to_json
from omlx.models.pool.speculation import SpeculationConfig, resolve_speculation
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group


def run_arguments(parser: ArgumentParser) -> None:
    actions = {"write": _write, "check": _check, "show": _show}
    for name, command in add_actions(parser, "package", actions):
        command.set_defaults(draft=None)
        command.add_argument("target", metavar="MODEL", help=sentence("cli.package.model", {}))
        if name == "write":
            flags = {"--draft": "D", "--window": "W", "--from-bench": "FILE", "--name": "NAME"}
            for flag, metavar in flags.items():
                key = flag[2:].replace("-", "_")
                text = sentence(f"cli.package.{key}", {})
                command.add_argument(flag, metavar=metavar, required=flag == "--draft", help=text)
        if name == "show":
            text = sentence("cli.models.json", {})
            command.add_argument("--json", action="store_true", help=text)
        add_flags(command, [Group.MODELS])


def run(arguments: Namespace) -> int:
    live = configured(arguments)
    names = [name for name in (arguments.target, arguments.draft) if name is not None]
    catalog = local_catalog(live, *names)
    arguments.action(arguments, catalog.resolve(model_id(arguments.target)), catalog)
    return 0


def _write(arguments: Namespace, target: ModelEntry, catalog: Catalog) -> None:
    if target.path.resolve().is_relative_to(BUNDLED):
        raise ModelError("package.bundled", param=None, path=str(target.path))
    bench = None if arguments.from_bench is None else Path(arguments.from_bench)
    window, lines = _window(arguments.window, bench)
    declared = declare_draft(target, model_id(arguments.draft), window, catalog.registry)
    _check_visible(declared, catalog)
    if arguments.name is not None and not re.fullmatch(r"[\w.-]+", arguments.name):
        raise BadRequest("package.name", param="name", name=arguments.name)
    name = arguments.name or declared.draft.repository.rpartition("/")[2].lower()
    path = write_package(target.path, declared, name)
    written = sentence("cli.package.written", {"file": path, "draft": str(declared.draft)})
    sys.stdout.write("\n".join([written, *lines, ""]))


def _check_visible(declared: DeclaredDraftModel, catalog: Catalog) -> None:
    """Raise ModelError if the draft is found only because its folder was named."""
    draft = str(declared.draft)
    entry = find_draft(draft, catalog.registry)
    without_folders = find_draft(draft, local_catalog(catalog.live).registry)
    if isinstance(entry, ModelEntry) and isinstance(without_folders, Reason):
        raise ModelError("draft.out_of_sight", param=None, draft=draft, path=str(entry.path))


def _window(text: str | None, bench: Path | None) -> tuple[WindowPolicy | None, list[str]]:
    """Return the draft length to declare, and sentences that name its source.

    `--window` takes precedence over a benchmark's result, which is read all the same: invalid
    results are refused. Raises ModelError.
    """
    chosen = None if text is None else window_from(text)
    measured = None if bench is None else window_from_bench(bench)
    window = chosen or measured
    if window is None:
        return None, []
    source = "--window" if chosen is not None else bench
    lines = [sentence("cli.package.window_taken", {"window": str(window), "source": source})]
    if chosen is not None and measured is not None:
        unused = {"window": str(measured), "file": bench}
        lines.append(sentence("cli.package.window_passed_over", unused))
    return window, lines


def _check(arguments: Namespace, target: ModelEntry, catalog: Catalog) -> None:
    package = check_package(target, catalog.registry)
    for warning in package.warnings:
        sys.stderr.write(f"omlx: {warning.message}\n")
    code = "cli.package.well" if package.declared is not None else "cli.package.nothing"
    sys.stdout.write(sentence(code, {"model": target.id, "name": package.default}) + "\n")


def _show(arguments: Namespace, target: ModelEntry, catalog: Catalog) -> None:
    package = read_package(target.path)
    config = resolve_speculation(target, catalog.registry, catalog.configuration)
    if config.active_draft is not None:
        problem = draft_problem(target, config.active_draft)
        if problem is not None:
            config = replace(config, draft=None, reason=problem)
    if not arguments.json:
        sys.stdout.write(_listing(package, config))
        return
    record = {
        "model": target.id,
        "declares": None if package.declared is None else strategy_to_json(package.declared),
        "drafters": list(config.drafters),
        "speculation": speculation_to_json(config),
    }
    sys.stdout.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _listing(package: Package, config: SpeculationConfig) -> str:
    length, sources = config.draft_length, config.sources
    draft = config.active_draft.id if config.active_draft else "–"
    rows = [
        ("strategy", str(config.strategy), sources["speculation"].value),
        ("drafters", ", ".join(config.drafters) or "–", ""),
        ("draft", draft, sources["draft_model"].value),
        ("window", f"{length.initial}, {length.min} to {length.max}", ""),
    ]
    if isinstance(package.declared, DeclaredDraftModel):
        rows.insert(0, ("declared", str(package.declared.draft), package.default or ""))
    reasons = (config.no_draft_reason, *config.warnings)
    lines = [reason.message for reason in reasons if reason is not None]
    if config.missing_draft is not None:
        lines.append(download_hint(config.missing_draft))
    return columns(rows) + "".join(f"{line}\n" for line in lines)
