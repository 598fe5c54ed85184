"""A system's manager of services, as the command drives it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from omlx.errors import ConfigError
from omlx.service.definition import Definition


class Manager(Protocol):
    """`path` is the file that describes the service."""

    @property
    def path(self) -> Path: ...

    def text(self, definition: Definition) -> str:
        """Return what the file holds."""

    def start(self) -> None:
        """Read the file, start the service now and at each login. Raises ConfigError."""

    def stop(self) -> None:
        """Stop the service, and start it no more. Raises ConfigError."""

    def is_running(self) -> bool: ...


def call(command: Sequence[str]) -> None:
    """Run a command of the manager. Raises ConfigError with what it says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError("service.manager", command=command[0], detail=str(error)) from error
    if done.returncode:
        detail = (done.stderr or done.stdout).strip() or str(done.returncode)
        raise ConfigError("service.manager", command=" ".join(command), detail=detail)


def succeeds(command: Sequence[str]) -> bool:
    """Whether a command of the manager ends with status 0."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
