"""`omlx service`: start the server at login and after failures; `omlx logs`: the server's log."""

from __future__ import annotations

import argparse
import os
import plistlib
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from omlx.catalog import escaped, sentence
from omlx.cli.arguments import configured
from omlx.cli.output import DIM, YELLOW, say, styled
from omlx.cli.serve.address import find_server
from omlx.errors import ConfigError
from omlx.settings.schema import table
from omlx.storage import replace_file
from omlx.telemetry.log import LEVELS, LogLine, log_file, parse_line

NAME: Final = "omlx"

STOP_S: Final = 75
"""Seconds — time to kill a server; draining its requests takes up to 60."""


def call(command: Sequence[str]) -> None:
    """Run a command of the manager. Raises ConfigError with the command's error output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError("service.manager", command=command[0], detail=str(error)) from error
    if done.returncode:
        detail = (done.stderr or done.stdout).strip() or str(done.returncode)
        raise ConfigError("service.manager", command=" ".join(command), detail=detail)


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


LABEL: Final = f"{NAME}.server"


class Launchd:
    """Agent of launchd. `path` is the service's definition file, `text` its content.

    `start` loads the file, and starts the service now and at each login; `stop` ends both. They
    raise ConfigError.
    """

    @property
    def path(self) -> Path:
        return Path.home() / "Library/LaunchAgents" / f"{LABEL}.plist"

    def text(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> str:
        record = {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "EnvironmentVariables": dict(variables),
            "RunAtLoad": True,
            # Restart after a failure, not after a regular end or a stop.
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            # Background processes are throttled.
            "ProcessType": "Interactive",
            "StandardOutPath": str(log),
            "StandardErrorPath": str(log),
        }
        return plistlib.dumps(record).decode()

    def start(self) -> None:
        if self.is_running():
            self.stop()
        call(["launchctl", "bootstrap", _domain(), str(self.path)])

    def stop(self) -> None:
        call(["launchctl", "bootout", f"{_domain()}/{LABEL}"])

    def is_running(self) -> bool:
        return succeeds(["launchctl", "print", f"{_domain()}/{LABEL}"])


def _domain() -> str:
    return f"gui/{os.getuid()}"


class Systemd:
    @property
    def path(self) -> Path:
        given = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(given) if os.path.isabs(given) else Path.home() / ".config"
        return folder / "systemd/user" / f"{NAME}.service"

    def text(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> str:
        pairs = [f"{name}={value}" for name, value in variables.items()]
        file = str(log).replace("%", "%%")
        lines = [
            "[Unit]",
            "Description=omlx, a server for language models",
            "",
            "[Service]",
            "ExecStart=" + " ".join(map(_quoted, command)),
            *(f"Environment={_quoted(pair, command=False)}" for pair in pairs),
            "Restart=on-failure",
            "RestartSec=2",
            f"TimeoutStopSec={STOP_S}",
            f"StandardOutput=append:{file}",
            f"StandardError=append:{file}",
            "",
            "[Install]",
            "WantedBy=default.target",
        ]
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        call(["systemctl", "--user", "daemon-reload"])
        call(["systemctl", "--user", "enable", f"{NAME}.service"])
        call(["systemctl", "--user", "restart", f"{NAME}.service"])

    def stop(self) -> None:
        call(["systemctl", "--user", "disable", "--now", f"{NAME}.service"])

    def is_running(self) -> bool:
        return succeeds(["systemctl", "--user", "is-active", "--quiet", f"{NAME}.service"])


Manager: TypeAlias = Launchd | Systemd


def _quoted(text: str, *, command: bool = True) -> str:
    """Quote a word of a unit file. Specifiers begin with %, variables of commands with $."""
    for plain, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        text = text.replace(plain, written)
    if command:
        text = text.replace("$", "$$")
    return f'"{text}"'


LOG: Final = "service.log"
_LINES: Final = 50
_FAILED: Final = 1


def service_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    install = actions.add_parser("install", help=sentence("cli.service.install", {}))
    install.add_argument(
        "--print", dest="dry", action="store_true", help=sentence("cli.service.print", {})
    )
    install.add_argument(
        "given", metavar="…", nargs=argparse.REMAINDER, help=sentence("cli.service.given", {})
    )
    actions.add_parser("status", help=sentence("cli.service.status", {}))
    logs = actions.add_parser("logs", help=sentence("cli.service.logs", {}))
    logs.add_argument(
        "-f", "--follow", action="store_true", help=sentence("cli.service.follow", {})
    )
    actions.add_parser("uninstall", help=sentence("cli.service.uninstall", {}))


def service(arguments: Namespace) -> int:
    home = configured(arguments).current.resolve().settings.home
    manager = Launchd() if sys.platform == "darwin" else Systemd()
    match arguments.action:
        case "install":
            return _install(manager, home, arguments.given, dry=arguments.dry)
        case "status":
            return _status(manager, home)
        case "logs":
            return _service_log(home / LOG, follow=arguments.follow)
        case _:
            return _uninstall(manager, home)


def _install(manager: Manager, home: Path, given: list[str], *, dry: bool) -> int:
    """Write the definition and start the service; without a service manager, leave no file."""
    command = (sys.executable, "-m", "omlx", "serve", *given)
    text = manager.text(command, home / LOG, {"OMLX_HOME": str(home)})
    if dry:
        sys.stdout.write(text)
        return 0
    home.mkdir(parents=True, exist_ok=True)
    manager.path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(manager.path, text.encode())
    try:
        manager.start()
    except ConfigError:
        manager.path.unlink()
        raise
    say("cli.service.installed", path=str(manager.path))
    return 0


def _status(manager: Manager, home: Path) -> int:
    """Return exit status 0 while the service runs."""
    if not manager.path.exists():
        say("cli.service.not_installed")
        return _FAILED
    address = find_server(home)
    if address is not None and manager.is_running():
        say("cli.service.running", url=address)
        return 0
    say("cli.service.not_running", log=str(home / LOG))
    return _FAILED


def _service_log(path: Path, *, follow: bool) -> int:
    if not path.exists():
        raise ConfigError("service.no_log", path=str(path))
    if follow:
        return subprocess.run(["tail", "-n", str(_LINES), "-F", str(path)], check=False).returncode
    with path.open(encoding="utf-8", errors="replace") as log:
        sys.stdout.writelines(deque(log, _LINES))
    return 0


def _uninstall(manager: Manager, home: Path) -> int:
    if manager.path.exists():
        manager.stop()
        manager.path.unlink()
    (home / LOG).unlink(missing_ok=True)
    say("cli.service.uninstalled", path=str(manager.path))
    return 0


_WARNING: Final = LEVELS.index("warning")


def logs_arguments(parser: ArgumentParser) -> None:
    follow, lines = sentence("cli.service.follow", {}), sentence("cli.logs.lines", {})
    parser.add_argument("-f", "--follow", action="store_true", help=follow)
    parser.add_argument("-n", "--lines", metavar="N", type=int, default=_LINES, help=lines)
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def logs(arguments: Namespace) -> int:
    path = log_file(configured(arguments).current.resolve().settings.home)
    if not path.exists():
        raise ConfigError("service.no_log", path=str(path))
    # -F follows the name: the file is rotated.
    command = ["tail", "-n", str(max(arguments.lines, 0)), str(path)]
    if arguments.follow:
        command.insert(1, "-F")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tail:
        assert tail.stdout is not None
        try:
            _write(tail.stdout)
        finally:
            tail.terminate()
    return 0


def _write(lines: Iterable[bytes]) -> None:
    for raw in lines:
        line = parse_line(raw)
        if line is not None:
            sys.stdout.write(_shown(line) + "\n")
            sys.stdout.flush()


def _shown(line: LogLine) -> str:
    at = styled(datetime.fromtimestamp(line.at).isoformat(" ", "seconds"), DIM)
    if LEVELS.index(line.level) < _WARNING:
        return f"{at} {escaped(line.text)}"
    return f"{at} {styled(f'{line.level}: {escaped(line.text)}', YELLOW)}"
