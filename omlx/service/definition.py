"""What a service runs, whichever system runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NAME: Final = "omlx"

STOP_S: Final = 75
"""Seconds until a server that drains its requests, in 60, is killed."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A command, and the file that takes its output."""

    command: tuple[str, ...]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
