"""What all reports share: tables for the terminal, JSON files, machine and versions."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import mlx.core as mx

from omlx import __version__

Json: TypeAlias = dict[str, object]


def write_json(file: Path | None, report: Json) -> None:
    """Write a report if there is a file. NaN and infinity become null: JSON cannot hold them."""
    if file is not None:
        text = json.dumps(_finite(report), indent=1, allow_nan=False)
        file.write_text(text + "\n", encoding="utf-8")


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return columns aligned left, the first row underlined."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["─" * width for width in widths])
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def environment(load_before: tuple[float, ...]) -> Json:
    """Return what the figures were taken on. The load before shows whether something else ran."""
    preloaded = [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":") if name]
    return {
        "machine": {
            "platform": f"{platform.system()} {platform.release().split('-')[0]}",
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "device": str(mx.default_device()),
            "preloaded": preloaded,
            "load_before": list(load_before),
            "load_after": list(os.getloadavg()),
        },
        "versions": {
            "omlx": __version__,
            "python": platform.python_version(),
            "mlx": version("mlx"),
            "mlx-lm": version("mlx-lm"),
        },
    }


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
