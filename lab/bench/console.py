"""Flags, progress, tables and JSON files shared by the commands."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeAlias

import mlx.core as mx
from tqdm import tqdm

from omlx import __version__


def model_dir(text: str) -> Path:
    path = Path(text).expanduser()
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a model folder: it has no config.json")
    return path


def output(text: str) -> Path:
    """Parse the path of an output file, failing before hours of measuring, not after."""
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: it must be a file in a folder that is there"
        )
    return path


def one_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of comma-separated names among `choices`."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        unknown = set(chosen) - set(choices)
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: choose from {', '.join(choices)}"
            )
        return chosen

    return names


def positive(text: str) -> int:
    """Parse an integer above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def not_negative(text: str) -> float:
    """Parse a number that is at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # NaN is refused too
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """Parse `1,4,8`, or the inclusive range `1-8`, into sorted distinct integers."""
    first, dash, last = text.partition("-")
    values: Iterable[int] = map(positive, text.split(","))
    if dash:
        values = range(positive(first), positive(last) + 1)
    ordered = tuple(sorted(set(values)))
    if not ordered:
        raise argparse.ArgumentTypeError(f"{text!r} has no numbers: the first is above the last")
    return ordered


FLAGS: Final[dict[str, dict[str, Any]]] = {
    "--model": {
        "type": model_dir,
        "metavar": "DIR",
        "required": True,
        "help": "folder of the model",
    },
    "--draft": {
        "type": model_dir,
        "metavar": "DIR",
        "help": "folder of a draft model; else nothing that needs one",
    },
    "--dtype": {
        "choices": ("auto", "float32", "bfloat16", "float16"),
        "default": "auto",
        "help": "convert the weights; auto, the default, as the server does: float32 on a CPU",
    },
    "--quantize": {
        "type": int,
        "choices": (2, 3, 4, 6, 8),
        "metavar": "BITS",
        "help": "quantize the weights",
    },
    "--json": {"type": output, "metavar": "FILE", "help": "write everything, raw samples too"},
}


def add(parser: argparse.ArgumentParser, *flags: str) -> None:
    for flag in flags:
        parser.add_argument(flag, **FLAGS[flag])


LOG_INTERVAL_S: Final = 30.0


class Progress:
    """Progress in `total` units. `deadline`, a time of `clock`, bounds the time left."""

    def __init__(
        self,
        total: int,
        unit: str,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bar: tqdm[NoReturn] = tqdm(total=total, unit=unit, disable=None)
        self._total, self._unit, self._done = total, unit, 0
        self._deadline = inf if deadline is None else deadline
        self._clock = clock
        self._began = clock()
        self._logged_at = -inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def start(self, name: str) -> None:
        """Show the name of the running unit."""
        now = self._clock()
        if not self._done:
            self._began = now  # time before the first unit says nothing about the others
        self._bar.set_description(name)
        if self._bar.disable and now >= self._logged_at + LOG_INTERVAL_S:
            self._logged_at = now
            self.write(f"{name}: {self._done} of {self._total} {self._unit}s{self._left(now)}")

    def tick(self) -> None:
        self._done += 1
        self._bar.update()

    def reach(self, done: int) -> None:
        """Count skipped units, up to `done`."""
        self._bar.update(max(0, done - self._done))
        self._done = max(done, self._done)

    def write(self, line: str) -> None:
        """Write a line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def _left(self, now: float) -> str:
        if not self._done:
            return ""
        seconds = (now - self._began) / self._done * (self._total - self._done)
        return f", {max(0.0, min(seconds, self._deadline - now)) / 60:.0f} min left"


Json: TypeAlias = dict[str, object]


def write_json(file: Path | None, report: Json) -> None:
    """Write `report` if there is a file. NaN and infinity, absent from JSON, become null."""
    if file is not None:
        text = json.dumps(_finite(report), indent=1, allow_nan=False)
        file.write_text(text + "\n", encoding="utf-8")


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return left-aligned columns, the first row underlined."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["─" * width for width in widths])
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def environment(load_before: tuple[float, ...]) -> Json:
    """Return machine and versions. The load before a run shows whether other programs ran."""
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
