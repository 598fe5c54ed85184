"""`omlx doctor`: what somebody who helps would ask for, in a form that can be pasted. It holds no secrets: keys are
only said to be set, and the user's folder is written `~`."""

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
from omlx.cli import running
from omlx.cli.bind import listen
from omlx.cli.columns import columns, size
from omlx.cli.configured import configured
from omlx.errors import ConfigError
from omlx.models.catalog.discovery import BUNDLED, scan_places
from omlx.models.catalog.entry import Status
from omlx.models.catalog.places import Place, places
from omlx.models.pool.footprint import default_limit_bytes, machine_bytes
from omlx.server.guard import is_loopback
from omlx.settings.file import read
from omlx.settings.resolve import add_flags
from omlx.settings.schema import Group, Settings
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE

Rows: TypeAlias = Iterator[tuple[str, ...]]

_PACKAGES = ("mlx", "mlx-lm", "transformers", "fastapi", "uvicorn")


def add_arguments(parser: ArgumentParser) -> None:
    add_flags(parser, [Group.SERVER, Group.MODELS])


def run(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    chapters = {
        "machine": _machine(),
        "versions": _versions(),
        "memory": _memory(settings),
        "models": _models(settings),
        "server": _server(settings),
        "files": _files(settings.home),
    }
    for name, rows in chapters.items():
        sys.stdout.write(
            _without_user(
                f"{sentence(f'cli.doctor.{name}', {})}\n{_indented(columns(list(rows)))}\n"
            )
        )
    return 0


def _machine() -> Rows:
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform == "darwin":
        yield "macOS", platform.mac_ver()[0]
    info = mx.device_info()
    yield "device", f"{mx.default_device().type.name}: {info.get('device_name', '?')}"
    yield "processors", str(os.cpu_count())


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
    yield "recommended for the GPU", size(int(recommended)) if recommended else "not known"
    limit = settings.memory_limit
    yield (
        "limit for models",
        size(default_limit_bytes() if limit is None else limit),
        "default" if limit is None else "",
    )


def _models(settings: Settings) -> Rows:
    for place in places(settings, os.environ, BUNDLED):
        entries = scan_places([place]).entries
        counts = Counter(entry.status for entry in entries)
        skipped = Counter(entry.reason.code for entry in entries if entry.reason is not None)
        yield (
            place.source,
            _root(place),
            f"{counts[Status.USABLE]} found, {counts[Status.SKIPPED]} skipped",
        )
        for code, count in skipped.items():
            yield "", "", f"{count} {code}"


def _root(place: Place) -> str:
    root: Path = place.root
    return str(root) if os.path.isdir(root) else f"{root} (not there)"


def _server(settings: Settings) -> Rows:
    yield (
        "address",
        f"{settings.host}:{settings.port}",
        "this machine only" if is_loopback(settings.host) else "open",
    )
    address = running.find(settings.home)
    yield "running", address or "no"
    if address is None:
        yield "port", _port(settings)
    yield "API key", "set" if settings.api_key is not None else "not set"


def _port(settings: Settings) -> str:
    try:
        listen(settings.host, settings.port).close()
    except ConfigError as error:
        return error.message
    return "free"


def _files(home: Path) -> Rows:
    yield (
        str(home),
        _mode(home),
        "" if os.access(home, os.W_OK) or not home.exists() else "cannot be written",
    )
    for name in (GLOBAL_FILE, MODELS_FILE, ADMIN_FILE):
        path = home / name
        try:
            content = read(path)
            broken = content.note.message if content.note is not None else ""
            note = "written by another program" if content.foreign else broken
        except ConfigError as error:
            note = error.message
        yield name, _mode(path), note
    for corrupt in sorted(home.glob("*.corrupt-*")):
        yield corrupt.name, _mode(corrupt), "set aside"


def _mode(path: Path) -> str:
    try:
        return stat.filemode(path.stat().st_mode)
    except OSError:
        return "not there"


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def _without_user(text: str) -> str:
    user = os.path.expanduser("~")
    return text.replace(user, "~") if user != "/" else text
