"""A unit of systemd's user manager: see systemd.unit(5) and systemd.service(5)."""

from __future__ import annotations

import os
from pathlib import Path

from omlx.service.definition import NAME, STOP_S, Definition
from omlx.service.manager import call, succeeds


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


def _quoted(text: str, *, command: bool = True) -> str:
    """Return one word of a unit file. Specifiers begin with %, variables of commands with $."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        text = text.replace(plain, escaped)
    if command:
        text = text.replace("$", "$$")
    return f'"{text}"'
