"""How templates write numbers and addresses. Figures look the same in every language."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import quote

MODELS: Final = "/admin/models"
_GB = 1000**3
_THIN = "\u202f"
"""Narrow and unbreakable: between a figure and its unit."""


def size(count: int) -> str:
    """Bytes as people say them: `5.3 MB`, `17 GB`."""
    value, unit = (count / _GB, "GB") if count >= _GB else (count / 1000**2, "MB")
    return f"{value:.0f}{_THIN}{unit}" if value >= 10 else f"{value:.1f}{_THIN}{unit}"


def ratio(value: float) -> str:
    """`1.6×`; two digits below one, where they decide: `0.94×`."""
    return f"{value:.1f}×" if value >= 1.05 else f"{value:.2f}×"


def percent(share: float) -> str:
    return f"{100 * share:.0f}{_THIN}%"


def rate(tokens: float) -> str:
    """Tokens per second: `8.3`, `142`."""
    return f"{tokens:.0f}" if tokens >= 99.95 else f"{tokens:.1f}"


def count(number: int) -> str:
    """`1 234 567`, in groups that do not part at the end of a line."""
    return f"{number:,}".replace(",", _THIN)


def clock(at: float) -> str:
    """The time of day on the server, of seconds since the epoch: `14:03:21`."""
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def duration(seconds: float) -> str:
    """`40 s`, `3 min`, `1 h 20 min`: as exact as anybody can foresee."""
    if seconds < 55:
        return f"{max(5, 5 * round(seconds / 5))}{_THIN}s"
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"{minutes}{_THIN}min"
    return f"{minutes // 60}{_THIN}h {minutes % 60}{_THIN}min"


def moment(at: float) -> str:
    """Seconds since 1970 as `2026-03-14 15:09`, on the clock of this machine."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def model_path(model: str) -> str:
    """The page of a model. Ids have slashes, and keep them."""
    return f"{MODELS}/{quote(model, safe='/')}"
