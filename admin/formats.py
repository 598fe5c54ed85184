"""Number formats of templates, the same in every language."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_GB: Final = 1000**3
_THIN: Final = "\u202f"
"""Narrow no-break space between a figure and its unit."""


def size(nbytes: int) -> str:
    """Bytes in decimal units: `5.3 MB`, `17 GB`."""
    value, unit = (nbytes / _GB, "GB") if nbytes >= _GB else (nbytes / 1000**2, "MB")
    digits = int(value < 10)
    return f"{value:.{digits}f}{_THIN}{unit}"


def ratio(value: float) -> str:
    """`1.6×`; two digits where they separate a gain from a loss: `0.94×`."""
    digits = 1 if value >= 1.05 else 2
    return f"{value:.{digits}f}×"


def percent(share: float) -> str:
    return f"{100 * share:.0f}{_THIN}%"


def rate(tokens: float) -> str:
    """Tokens per second: `8.3`, `142`."""
    digits = int(tokens < 99.95)
    return f"{tokens:.{digits}f}"


def count(number: int) -> str:
    """`1 234 567`, with groups that do not wrap."""
    return f"{number:,}".replace(",", _THIN)


def clock(at: float) -> str:
    """Seconds since the epoch as the server's time of day: `14:03:21`."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def duration(seconds: float) -> str:
    """`40 s`, `3 min`, `1 h 20 min`: rounded as coarsely as an estimate deserves."""
    if seconds < 55:
        return f"{max(5, 5 * round(seconds / 5))}{_THIN}s"
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"{minutes}{_THIN}min"
    return f"{minutes // 60}{_THIN}h {minutes % 60}{_THIN}min"


def moment(at: float) -> str:
    """Seconds since the epoch in the server's time zone: `2026-03-14 15:09`."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
