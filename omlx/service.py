"""Service of the user's login session: a launchd agent on macOS, a systemd unit on Linux.

See launchd.plist(5), systemd.unit(5) and systemd.service(5).
"""

from __future__ import annotations

import os
import plistlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from omlx.errors import ConfigError

NAME: Final = "omlx"

STOP_S: Final = 75
"""Seconds — time to kill a server; draining its requests takes up to 60."""


@dataclass(frozen=True, slots=True)
class Definition:
    command: tuple[str, ...]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)


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

    def text(self, definition: Definition) -> str:
        log = str(definition.log)
        record = {
            "Label": LABEL,
            "ProgramArguments": list(definition.command),
            "EnvironmentVariables": dict(definition.variables),
            "RunAtLoad": True,
            # Restart after a failure, not after a regular end or a stop.
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            # Background processes are throttled.
            "ProcessType": "Interactive",
            "StandardOutPath": log,
            "StandardErrorPath": log,
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

    def text(self, definition: Definition) -> str:
        variables = [
            f"Environment={_quoted(f'{name}={value}', command=False)}"
            for name, value in definition.variables.items()
        ]
        log = str(definition.log).replace("%", "%%")
        lines = [
            "[Unit]",
            "Description=omlx, a server for language models",
            "",
            "[Service]",
            "ExecStart=" + " ".join(map(_quoted, definition.command)),
            *variables,
            "Restart=on-failure",
            "RestartSec=2",
            f"TimeoutStopSec={STOP_S}",
            f"StandardOutput=append:{log}",
            f"StandardError=append:{log}",
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
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        text = text.replace(plain, escaped)
    if command:
        text = text.replace("$", "$$")
    return f'"{text}"'
