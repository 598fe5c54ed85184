"""`omlx doctor`: the details of a problem report.

`--exact` measures whether wide passes of a model have the bits of single steps. `--hosts` checks
whether a model can be served over these machines, and the speed of their links.

The output holds no secrets: an API key is only "set" or "not set", and the user's folder is written
`~`.
"""

from __future__ import annotations

import asyncio
import os
import platform
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeAlias

import mlx.core as mx

from omlx import __version__
from omlx.admin.credentials import FILE as ADMIN_FILE
from omlx.catalog import sentence
from omlx.cli import installed
from omlx.cli.arguments import configured, local_catalog
from omlx.cli.output import BOLD, columns, memory_size, styled
from omlx.cli.serve.address import find_server, listen
from omlx.cli.stage.links import HEAD, probe_hosts
from omlx.cli.stage.processes import read_hosts
from omlx.engine.device_errors import DEVICE_ERROR
from omlx.engine.thread import EngineThread
from omlx.errors import ConfigError
from omlx.exactness import Exactness
from omlx.machine import (
    UNKNOWN,
    Machine,
    classes_command,
    machine_bytes,
    machine_rows,
    power_rows,
    warnings,
)
from omlx.models.catalog.discovery import BUNDLED, places, scan_places
from omlx.models.catalog.registry import Status
from omlx.models.pool.cost_store import CostStore
from omlx.models.pool.footprint import limit_bytes
from omlx.models.pool.pool import build_pool
from omlx.power import read_power
from omlx.server.http.guard import is_loopback
from omlx.server.services import ExactnessService
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import read
from omlx.settings.keys import FILE as KEYS_FILE
from omlx.settings.keys import KeyFile
from omlx.settings.layers import add_flags, cli_layer, flags_of
from omlx.settings.schema import Group, Settings
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE
from omlx.telemetry.log import read_tail

Rows: TypeAlias = Iterator[tuple[str, ...]]

_DEVICE_ERRORS: Final = 3
"""Device errors shown at most."""

_PACKAGES = ("mlx", "mlx-lm", "transformers", "fastapi", "uvicorn")


def run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.doctor.model", {}))
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--exact", metavar="MODEL", help=sentence("cli.doctor.exact_flag", {}))
    other.add_argument("--hosts", metavar="HOSTS", help=sentence("cli.doctor.hosts_flag", {}))
    add_flags(parser, [Group.SERVER, Group.MODELS])


def run(arguments: Namespace) -> int:
    configuration = configured(arguments)
    if arguments.hosts is not None:
        return _hosts(arguments, configuration)
    if arguments.exact is not None:
        return measure(arguments.exact, configuration)
    if arguments.model is not None:
        raise ConfigError("config.doctor_model", model=arguments.model)
    settings, machine = configuration.current.resolve().settings, read_machine()
    chapters = {
        **machine_chapters(machine, settings),
        "models": _models(settings),
        "server": _server(settings),
        "files": _files(settings.home),
        "device_errors": _device_errors(settings.home),
        "warnings": machine_warnings(machine),
    }
    write_chapters(chapters)
    return 0


def read_machine() -> Machine:
    info = mx.device_info()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processors=os.cpu_count() or 1,
        device=str(mx.default_device().type.name),
        device_name=str(info.get("device_name", UNKNOWN)),
        architecture=str(info.get("architecture", UNKNOWN)),
        metal=mx.metal.is_available(),
        mlx=version("mlx"),
        macos=platform.mac_ver()[0] if sys.platform == "darwin" else "",
        variables={key: value for key, value in os.environ.items() if key.startswith("MLX_")},
        power=read_power(),
    )


def machine_chapters(machine: Machine, settings: Settings) -> dict[str, Rows]:
    return {
        "machine": machine_rows(machine),
        "power": power_rows(machine.power),
        "versions": _versions(),
        "memory": _memory(settings),
    }


def machine_warnings(machine: Machine) -> Rows:
    return ((warning.message,) for warning in warnings(machine))


def write_chapters(chapters: Mapping[str, Rows]) -> None:
    for name, rows in chapters.items():
        # Chapters without rows are left out.
        if lines := columns(list(rows)).splitlines():
            heading = styled(sentence(f"cli.doctor.{name}", {}), BOLD)
            text = "\n  ".join([heading, *lines]) + "\n\n"
            user = os.path.expanduser("~")
            sys.stdout.write(text if user == "/" else text.replace(user, "~"))


def _hosts(arguments: Namespace, configuration: LiveConfiguration) -> int:
    """Probe every host but this one; return 0 if all can serve the model."""
    hosts = read_hosts(arguments.hosts)
    search = flags_of(cli_layer(arguments), Group.MODELS)
    rows = [tuple(sentence(f"cli.doctor.hosts.{name}", {}) for name in HEAD)]
    problems = []
    for cells, problem in probe_hosts(hosts, arguments.model, configuration, search):
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
        yield package, installed(package)
    found = installed("mlx-vlm")
    hint = f"for images and newer families: {classes_command()}"
    yield "mlx-vlm", found, hint if found == "missing" else ""


def _memory(settings: Settings) -> Rows:
    yield "machine", memory_size(machine_bytes())
    recommended = int(mx.device_info().get("max_recommended_working_set_size", 0))
    yield "recommended for the GPU", memory_size(recommended) if recommended else "not known"
    source = "default" if settings.memory_limit is None else ""
    yield "limit for models", memory_size(limit_bytes(settings.memory_limit)), source


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


def _device_errors(home: Path) -> Rows:
    """Yield the log's newest device errors, newest first."""
    with suppress(OSError):
        lines = [line for line in read_tail(home) if line.text.startswith(DEVICE_ERROR)]
        for line in lines[:_DEVICE_ERRORS]:
            at = datetime.fromtimestamp(line.at).isoformat(sep=" ", timespec="seconds")
            yield at, line.text.removeprefix(DEVICE_ERROR).removeprefix(" · ")


def _problem(path: Path) -> str:
    """Return why a file is ignored; empty if read."""
    try:
        content = read(path)
        if path.name == KEYS_FILE:
            KeyFile(path.parent).read()
    except ConfigError as error:
        return error.message
    if content.foreign:
        return "written by another program"
    return "" if content.note is None else content.note.message


def _mode(path: Path) -> str:
    try:
        return stat.filemode(path.stat().st_mode)
    except OSError:
        return "not there"


def measure(model: str, configuration: LiveConfiguration) -> int:
    """Measure a model's exactness in this process, and print a table."""
    measured = asyncio.run(_measure(model, configuration))
    rows = [tuple(sentence(f"cli.doctor.exact.{name}", {}) for name in ("pass", "difference"))]
    rows += _rows("window", measured.windows) + _rows("batch", measured.rows)
    contexts = ", ".join(map(str, measured.contexts))
    params = {"width": measured.width, "rows": measured.batch, "contexts": contexts}
    sys.stdout.write(columns(rows) + "\n" + sentence("cli.doctor.exact.result", params) + "\n")
    return 0


def _rows(kind: str, differences: Mapping[int, float]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for count, value in differences.items():
        cell = f"{value:.2g}" if value else sentence("cli.doctor.exact.equal", {})
        rows.append((sentence(f"cli.doctor.exact.{kind}", {"size": count}), cell))
    return rows


async def _measure(model: str, configuration: LiveConfiguration) -> Exactness:
    passes = 0

    def passed() -> None:
        nonlocal passes
        passes += 1
        if sys.stderr.isatty():
            sys.stderr.write("\r" + sentence("cli.doctor.exact.progress", {"passes": passes}))

    engine = EngineThread()
    engine.start()
    try:
        settings = configuration.current.resolve().settings
        catalog = await asyncio.to_thread(local_catalog, configuration)
        files = CostStore(settings.home)
        pool = build_pool(engine, catalog, costs=files)
        measured = await ExactnessService(pool, engine).measure(model, passed)
        await pool.residents.save_costs(files)
        return measured
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        engine.stop()
