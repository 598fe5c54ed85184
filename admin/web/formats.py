"""Number formats of templates. Units of time are translated; all others are the same everywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from omlx.catalog import SOURCE, sentence

THIN: Final = "\u202f"
"""Narrow no-break space between a figure and its unit."""


def memory(nbytes: int) -> str:
    """Bytes of memory in binary units, as Activity Monitor counts: `5.3 MB`, `12 GB`."""
    return _bytes(nbytes, 1024)


def disk(nbytes: int) -> str:
    """Bytes of files in decimal units, as Finder counts: `5.3 MB`, `17 GB`."""
    return _bytes(nbytes, 1000)


def ratio(value: float) -> str:
    """Format `1.6×`; with two digits near 1, to tell gain from loss: `0.94×`."""
    digits = 1 if value >= 1.05 else 2
    return f"{value:.{digits}f}×"


def percent(share: float) -> str:
    return f"{100 * share:.0f}{THIN}%"


def rate(tokens: float) -> str:
    """Tokens per second: `8.3`, `142`."""
    digits = int(tokens < 99.95)
    return f"{tokens:.{digits}f}"


def parameters(number: int) -> str:
    """Format `7.6B`, `135M`, as in names of models."""
    for unit, name in ((10**9, "B"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.{int(number < 99.5 * unit)}f}{name}"
    return f"{number / 1000:.0f}K"


def count(number: int) -> str:
    """Format `1 234 567`, with groups that do not wrap."""
    return f"{number:,}".replace(",", THIN)


def context(tokens: int) -> str:
    """Tokens of a context as people write them: `64k`."""
    return f"{tokens // 1024}k"


def prompt_length(tokens: int) -> str:
    """Format an exact number of tokens, round ones shorter: `4k`, `4 032`."""
    return count(tokens) if tokens % 1024 else context(tokens)


def clock(at: float) -> str:
    """Seconds since the epoch as the server's time of day: `14:03:21`."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def duration(seconds: float, language: str = SOURCE) -> str:
    """Format `40 s`, `3 min`, `1 h 20 min`: rounded as coarsely as an estimate deserves."""
    if seconds < 55:
        return sentence("unit.seconds", {"count": max(5, 5 * round(seconds / 5))}, language)
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return sentence("unit.minutes", {"count": minutes}, language)
    parts = {"hours": minutes // 60, "minutes": minutes % 60}
    return sentence("unit.hours", parts, language)


def elapsed(seconds: float, language: str = SOURCE) -> str:
    """A measured time, to three digits: `4 ms`, `1.52 s`, `12.4 s`, `2 min 39 s`, `-23.0 s`."""
    if seconds < 0:
        return f"−{elapsed(-seconds, language)}"
    if seconds == 0:
        return sentence("unit.seconds", {"count": 0}, language)
    if seconds < 0.9995:
        return sentence("unit.milliseconds", {"count": f"{1000 * seconds:.0f}"}, language)
    if seconds >= 3600:
        return duration(seconds, language)
    if seconds >= 120:
        whole = round(seconds)
        parts = {"minutes": whole // 60, "seconds": whole % 60}
        return sentence("unit.minutes_seconds", parts, language)
    digits = 2 - sum(seconds >= bound for bound in (9.995, 99.95))
    return sentence("unit.seconds", {"count": f"{seconds:.{digits}f}"}, language)


def moment(at: float) -> str:
    """Seconds since the epoch in the server's time zone: `2026-03-14 15:09`."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def timestamp(at: float) -> str:
    """Seconds since the epoch in the server's time zone: `2026-03-14 15:09:26`."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def _bytes(nbytes: int, base: int) -> str:
    value, unit = nbytes / base**2, "MB"
    if nbytes >= base**3:
        value, unit = nbytes / base**3, "GB"
    digits = int(value < 10 and nbytes % base**3 > 0)
    return f"{value:.{digits}f}{THIN}{unit}"
