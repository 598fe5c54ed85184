"""Text in columns, for people."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows with their cells aligned; a row may have fewer cells than others."""
    width = max(map(len, rows), default=0)
    padded = [row + ("",) * (width - len(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*padded, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in padded
    ]
    return "".join(f"{line}\n" for line in lines)


def size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"
