"""Texts of workloads: files of sections, each of which one prompt takes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

SEPARATOR: Final = "\n\n---\n\n"


@cache
def read_sections(file: Path, separator: str = SEPARATOR) -> tuple[str, ...]:
    """Return the sections of a text file."""
    return tuple(file.read_text(encoding="utf-8").strip().split(separator))
