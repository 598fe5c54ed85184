"""Result of a run: what the clients saw, figures of the server from outside, and their growth."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families as families

from lab.soak.load import Counts
from omlx.machine import footprint

MIB: Final = float(1 << 20)
BOUNDS_PER_HOUR: Final = {
    "memory of the processes, MiB": 24.0,
    "mlx active, MiB": 12.0,
    "mlx cache, MiB": 12.0,
    "file handles": 2.0,
    "threads": 2.0,
    "disk, MiB": 64.0,
}
"""Growth per hour that is still flat. Disk may move by one file of prefixes."""

WINDOWS: Final = 10
T_VALUE: Final = 2.31
"""Student's t for 95 % and the 8 degrees of freedom of a line through 10 points."""

Figures = dict[str, float]


def sample(http: httpx.Client, pid: int, home: Path) -> Figures:
    """Return the figures of `BOUNDS_PER_HOUR` now: of the server `pid` and the processes below it,
    and of the files in `home`."""
    memory = gauges(http, "omlx_memory_bytes", "what")
    below = _processes(pid)
    values = (
        sum(map(footprint, below)) / MIB,
        memory["mlx_active"] / MIB,
        memory["mlx_cache"] / MIB,
        sum(map(_handles, below)),
        sum(map(_threads, below)),
        _bytes_below(home) / MIB,
    )
    return dict(zip(BOUNDS_PER_HOUR, map(float, values), strict=True))


def gauges(http: httpx.Client, name: str, label: str) -> dict[str, float]:
    """Return the values of a metric of the server by one label, summed over the others."""
    values: dict[str, float] = {}
    for family in families(http.get("/metrics").text):
        if family.name == name:
            for each in family.samples:
                values[each.labels[label]] = values.get(each.labels[label], 0.0) + each.value
    return values


def _processes(pid: int) -> list[int]:
    """Return a process and all below it."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True)
    parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    members = [pid]
    for member in members:  # grows meanwhile
        members += [child for child, parent in parents if parent == member]
    return members


def _handles(pid: int) -> int:
    if sys.platform == "linux":
        return _entries(Path(f"/proc/{pid}/fd"))
    listed = subprocess.run(["lsof", "-p", str(pid), "-Ff"], capture_output=True, check=False)
    return listed.stdout.count(b"\nf")


def _threads(pid: int) -> int:
    if sys.platform == "linux":
        return _entries(Path(f"/proc/{pid}/task"))
    listed = subprocess.run(["ps", "-M", "-p", str(pid)], capture_output=True, check=False)
    return max(0, len(listed.stdout.splitlines()) - 1)


def _entries(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except FileNotFoundError:  # the process has ended
        return 0


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # it was deleted meanwhile
                continue
    return total


@dataclass(frozen=True)
class Growth:
    """Slope of a figure over the second half of a run, and half of its 95 % interval, per hour."""

    mean: float
    per_hour: float
    margin: float

    def exceeds(self, bound: float) -> bool:
        """Whether growth beyond `bound` is proven: the whole interval lies above it."""
        return self.per_hour - self.margin > bound

    def verdict(self, bound: float) -> str:
        if self.exceeds(bound):
            return "GROWS"
        proven = self.per_hour + self.margin <= bound
        return "flat" if proven else "no growth shown"


def growth(minutes: Sequence[float], values: Sequence[float]) -> Growth:
    """Fit a line through the medians of ten windows of the second half."""
    begin = minutes[-1] / 2
    width = (minutes[-1] - begin) / WINDOWS
    windows: dict[int, list[float]] = {}
    for minute, value in zip(minutes, values, strict=True):
        if minute >= begin:
            place = min(WINDOWS - 1, int((minute - begin) / width))
            windows.setdefault(place, []).append(value)
    hours = [(begin + (place + 0.5) * width) / 60 for place in windows]
    medians = [median(window) for window in windows.values()]
    slope, intercept = linear_regression(hours, medians)
    centre = sum(hours) / len(hours)
    spread = sum((hour - centre) ** 2 for hour in hours)
    residuals = sum(
        (value - intercept - slope * hour) ** 2 for hour, value in zip(hours, medians, strict=True)
    )
    error = (residuals / max(1, len(hours) - 2) / spread) ** 0.5
    return Growth(sum(medians) / len(medians), slope, T_VALUE * error)


def table(grown: Mapping[str, Growth]) -> str:
    """Return one line per figure: mean of the second half, growth per hour, bound, verdict."""
    lines = [f"{'second half':30} {'mean':>9} {'growth per hour':>22} {'bound':>7}"]
    for name, each in grown.items():
        bound = BOUNDS_PER_HOUR[name]
        change = f"{each.per_hour:+.1f} ± {each.margin:.1f}"
        row = f"{name:30} {each.mean:9.1f} {change:>22} {bound:7.0f}"
        lines.append(f"{row}  {each.verdict(bound)}")
    return "\n".join(lines)


@dataclass
class Result:
    """`loads` counts models loaded, `logged` are errors in the server's log."""

    streams: int
    counts: Counts = field(default_factory=Counts)
    minutes: list[float] = field(default_factory=list)
    samples: list[Figures] = field(default_factory=list)
    loads: int = 0
    logged: list[str] = field(default_factory=list)

    @property
    def series(self) -> dict[str, list[float]]:
        """Samples by figure."""
        return {name: [each[name] for each in self.samples] for name in BOUNDS_PER_HOUR}

    @property
    def grown(self) -> dict[str, Growth]:
        return {name: growth(self.minutes, values) for name, values in self.series.items()}

    @property
    def errors(self) -> list[str]:
        return self.counts.errors + self.logged

    @property
    def passed(self) -> bool:
        grows = any(each.exceeds(BOUNDS_PER_HOUR[name]) for name, each in self.grown.items())
        return not grows and not self.errors

    @property
    def title(self) -> str:
        requests = sum(self.counts.kinds.values())
        return (
            f"{self.minutes[-1]:.0f} minutes, {self.streams} streams, "
            f"{requests:,} requests, {len(self.errors)} errors"
        )

    def __str__(self) -> str:
        counts = self.counts
        kinds = ", ".join(f"{number} {name}" for name, number in sorted(counts.kinds.items()))
        same = ", ".join(f"{number} {name}" for name, number in counts.comparisons.items())
        lines = [
            f"{kinds}; {counts.tokens:,} tokens; {self.loads} times a model was loaded",
            f"compared with the first answer: {same or 'none'}",
            f"{counts.retried} times 503 with Retry-After, sent again",
            table(self.grown),
            *(error[:2000] for error in self.errors[:10]),
            f"{'passed' if self.passed else 'FAILED'}: {self.title}",
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "passed": self.passed,
            "minutes": self.minutes,
            "series": self.series,
            "kinds": self.counts.kinds,
            "comparisons": self.counts.comparisons,
            "tokens": self.counts.tokens,
            "retried": self.counts.retried,
            "loads": self.loads,
            "errors": self.errors,
        }
