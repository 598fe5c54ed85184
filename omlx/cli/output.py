"""Output for people: aligned columns, sizes as on the dashboard."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from omlx.admin.web.formats import THIN, disk, memory
from omlx.catalog import sentence
from omlx.models.catalog.reference import MissingDraft
from omlx.terminal_text import escaped


def columns(rows: Sequence[tuple[str, ...]], head: Sequence[str] = ()) -> str:
    """Return the rows with aligned cells, below `head`; rows may differ in length.

    Control characters are escaped: folder names and config fields are untrusted text.
    """
    if not rows:
        return ""
    rows = [tuple(map(escaped, row)) for row in (head, *rows)]
    count = max(map(len, rows), default=0)
    padded = [row + ("",) * (count - len(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    lines = []
    for row in padded:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip() + "\n")
    if head:
        lines[0] = styled(lines[0].rstrip(), BOLD) + "\n"
    return "".join(lines if head else lines[1:])


BOLD: Final = "1"
DIM: Final = "2"
UNDERLINE: Final = "4"
YELLOW: Final = "33"
_RESET: Final = "\x1b[0m"


def styled(text: str, style: str) -> str:
    """Return `text` in an ANSI style where standard output is a terminal with colours."""
    if not text or not has_colours():
        return text
    return f"\x1b[{style}m{text}{_RESET}"


def has_colours() -> bool:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def size(nbytes: int) -> str:
    """Return the bytes of files as the dashboard writes them: `17 GB`."""
    return str(disk(nbytes)).replace(THIN, " ")


def memory_size(nbytes: int) -> str:
    """Return bytes of memory as the dashboard writes them, in units of 1,024."""
    return str(memory(nbytes)).replace(THIN, " ")


def download_hint(missing: MissingDraft) -> str:
    """Return a sentence with a missing draft's download command and size."""
    known = "?"
    if missing.size_bytes is not None:
        known = size(missing.size_bytes)
    return sentence("cli.package.wanted", {"draft": str(missing.reference), "size": known})
