"""An agent of launchd, which runs it while the user is logged in: see launchd.plist(5)."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path
from typing import Final

from omlx.service.definition import NAME, STOP_S, Definition
from omlx.service.manager import call, succeeds

LABEL: Final = f"{NAME}.server"


class Launchd:
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
            # Again after a failure, not after `omlx` ended by itself or was stopped.
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            # Not throttled, as work in the background is.
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
