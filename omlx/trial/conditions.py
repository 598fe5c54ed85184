"""The conditions under which a trial was measured: machine, versions, weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import omlx
from omlx.errors import ModelError, Reason
from omlx.models.catalog.files import weight_files
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.cost_file import machine


@dataclass(frozen=True, slots=True)
class Conditions:
    """`versions` by package, `weights` (fingerprints) by model id."""

    machine: str
    versions: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, entries: Iterable[ModelEntry]) -> Conditions:
        """Return the conditions of this process with these models. Reads their directories."""
        versions = {"omlx": omlx.__version__, "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
        return cls(machine(), versions, {entry.id: fingerprint(entry) for entry in entries})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Conditions:
        """Raises KeyError, TypeError, ValueError for anything but the output of `to_json`."""
        return cls(str(values["machine"]), dict(values["versions"]), dict(values["weights"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def stale(then: Conditions, now: Conditions) -> tuple[Reason, ...]:
    """Return why figures measured `then` no longer hold; empty while they do.

    Models that only one side knows do not matter.
    """
    reasons = []
    if then.machine != now.machine:
        reasons.append(Reason("trial.stale.machine", {"machine": then.machine}))
    for name, after in now.versions.items():
        before = then.versions.get(name)
        if before != after:
            reasons.append(
                Reason("trial.stale.version", {"name": name, "before": before, "after": after})
            )
    for model, after in now.weights.items():
        if then.weights.get(model, after) != after:
            reasons.append(Reason("trial.stale.weights", {"model": model}))
    return tuple(reasons)


def fingerprint(entry: ModelEntry) -> str:
    """Return a hash over names, sizes and times of the weight files; empty if there are none."""
    stats = []
    try:
        for file in weight_files(entry.path):
            status = file.stat()
            stats.append((file.name, status.st_size, status.st_mtime_ns))
    except (ModelError, OSError):
        return ""
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
