"""What the figures of a trial depend on: the machine, the versions, the weights. Elsewhere they say nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import omlx
from omlx.errors import ModelError, Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.weight_files import weight_files
from omlx.models.pool.cost_file import machine


@dataclass(frozen=True, slots=True)
class Conditions:
    """`versions` are by package, `weights` by model id."""

    machine: str
    versions: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, entries: Iterable[ModelEntry]) -> Conditions:
        """Those of this process, with these models. Reads what the files' folders say of them."""
        versions = {"omlx": omlx.__version__, **{name: version(name) for name in ("mlx", "mlx-lm")}}
        return cls(machine(), versions, {entry.id: identity(entry) for entry in entries})

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Conditions:
        """Raises KeyError, TypeError, ValueError for what `to_json` never gave."""
        return cls(str(values["machine"]), dict(values["versions"]), dict(values["weights"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def stale(then: Conditions, now: Conditions) -> tuple[Reason, ...]:
    """Why figures from `then` no longer count; empty while they do. Models that only one side knows do not matter."""
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


def identity(entry: ModelEntry) -> str:
    """A name for the weights in a folder: other files, sizes or times have another one. Empty if there are none."""
    try:
        stats = [
            (file.name, file.stat().st_size, file.stat().st_mtime_ns)
            for file in weight_files(entry.path)
        ]
    except (ModelError, OSError):
        return ""
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
