"""`omlx doctor`: the details that a problem report needs.

With `--hosts`, whether a model can be served over these machines, and how fast their links are.

The output holds no secrets: of an API key it says whether it is set, and the user's folder is
written `~`.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

import mlx.core as mx

from omlx import __version__
from omlx.admin.login.credentials import FILE as ADMIN_FILE
from omlx.catalog import sentence
from omlx.cli.address import find_server, listen
from omlx.cli.arguments import configured
from omlx.cli.hostfile import read_hosts
from omlx.cli.machine import machine_rows, power_rows, read_machine, warnings
from omlx.cli.output import columns, size
from omlx.cli.stage_probe import HEAD, probe_hosts
from omlx.errors import ConfigError
from omlx.models.catalog.discovery import BUNDLED, scan_places
from omlx.models.catalog.entry import Status
from omlx.models.catalog.places import places
from omlx.models.pool.footprint import default_limit_bytes, machine_bytes
from omlx.server.guard import is_loopback
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import read
from omlx.settings.keys import FILE as KEYS_FILE
from omlx.settings.keys import KeyFile
from omlx.settings.resolve import add_flags
from omlx.settings.schema import Group, Settings
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE

Rows: TypeAlias = Iterator[tuple[str, ...]]

_PACKAGES = ("mlx", "mlx-lm", "transformers", "fastapi", "uvicorn")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.doctor.model", {}))
    parser.add_argument("--hosts", metavar="HOSTS", help=sentence("cli.doctor.hosts_flag", {}))
    add_flags(parser, [Group.SERVER, Group.MODELS])


def run(arguments: Namespace) -> int:
    configuration = configured(arguments)
    if arguments.hosts is not None:
        return _hosts(arguments.hosts, arguments.model, configuration)
    settings, machine = configuration.current.resolve().settings, read_machine()
    chapters = {
        "machine": machine_rows(machine),
        "power": power_rows(machine.power),
        "versions": _versions(),
        "memory": _memory(settings),
        "models": _models(settings),
        "server": _server(settings),
        "files": _files(settings.home),
        "warnings": ((warning.message,) for warning in warnings(machine)),
    }
    for name, rows in chapters.items():
        if lines := columns(list(rows)).splitlines():
            text = "\n  ".join([sentence(f"cli.doctor.{name}", {}), *lines]) + "\n\n"
            sys.stdout.write(_without_user(text))
    return 0


def _hosts(text: str, model: str | None, configuration: LiveConfiguration) -> int:
    """Probe every host but this one; return 0 if a model can be served over all of them."""
    hosts = read_hosts(text)
    rows = [tuple(sentence(f"cli.doctor.hosts.{name}", {}) for name in HEAD)]
    problems = []
    for cells, problem in probe_hosts(hosts, model, configuration):
        rows.append(tuple(cells))
        if problem is not None:
            problems.append((f"{cells[0]}: {problem.message}",))
    sys.stdout.write(columns([*_versions()]) + "\n" + columns(rows))
    if problems:
        sys.stdout.write("\n" + columns(problems))
    return 1 if problems else 0


def _versions() -> Rows:
    yield "omlx", __version__
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "missing"


def _memory(settings: Settings) -> Rows:
    yield "machine", size(machine_bytes())
    recommended = mx.device_info().get("max_recommended_working_set_size")
    if recommended:
        yield "recommended for the GPU", size(int(recommended))
    else:
        yield "recommended for the GPU", "not known"
    if settings.memory_limit is None:
        yield "limit for models", size(default_limit_bytes()), "default"
    else:
        yield "limit for models", size(settings.memory_limit), ""


def _models(settings: Settings) -> Rows:
    for place in places(settings, os.environ, BUNDLED):
        entries = scan_places([place]).entries
        root: Path = place.root
        folder = str(root)
        if not os.path.isdir(root):
            folder += " (not there)"
        counts = Counter(entry.status for entry in entries)
        counted = f"{counts[Status.USABLE]} found, {counts[Status.SKIPPED]} skipped"
        yield place.source, folder, counted
        skipped = Counter(entry.reason.code for entry in entries if entry.reason is not None)
        for code, count in skipped.items():
            yield "", "", f"{count} {code}"


def _server(settings: Settings) -> Rows:
    reach = "this machine only" if is_loopback(settings.host) else "open"
    yield "address", f"{settings.host}:{settings.port}", reach
    address = find_server(settings.home)
    yield "running", address or "no"
    if address is None:
        yield "port", _port(settings)
    yield "API key", "set" if settings.api_key is not None else "not set"


def _port(settings: Settings) -> str:
    """Return whether the port is free."""
    try:
        listen(settings.host, settings.port).close()
    except ConfigError as error:
        return error.message
    return "free"


def _files(home: Path) -> Rows:
    problem = ""
    if home.exists() and not os.access(home, os.W_OK):
        problem = "cannot be written"
    yield str(home), _mode(home), problem
    for name in (GLOBAL_FILE, MODELS_FILE, ADMIN_FILE, KEYS_FILE):
        yield name, _mode(home / name), _problem(home / name)
    for corrupt in sorted(home.glob("*.corrupt-*")):
        yield corrupt.name, _mode(corrupt), "set aside"


def _problem(path: Path) -> str:
    """Return why a file does not count; empty if it does."""
    try:
        content = read(path)
        if path.name == KEYS_FILE:
            KeyFile(path.parent).read()
    except ConfigError as error:
        return error.message
    if content.foreign:
        return "written by another program"
    if content.note is None:
        return ""
    return content.note.message


def _mode(path: Path) -> str:
    try:
        return stat.filemode(path.stat().st_mode)
    except OSError:
        return "not there"


def _without_user(text: str) -> str:
    user = os.path.expanduser("~")
    if user == "/":
        return text
    return text.replace(user, "~")
