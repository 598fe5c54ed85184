"""Stored results of measurements, and the conditions under which they were measured.

    trials      by model, {"report": {…}, "drafts": {"org/small": {…}}}: the last trial, and the
                last figures of each draft
    benchmarks  by model, {"runs": [{"record": …, "at": …, "conditions": …}, …]}, newest first

Unreadable results count as missing, with a line in the log: the loss costs another measurement.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

import omlx
from omlx.errors import ModelError, Reason
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.cost_store import machine
from omlx.storage import Failure, Measurements

TRIALS: Final = "trials"
BENCHMARKS: Final = "benchmarks"
KEPT: Final = 12
"""Runs of a model — the newest of each omlx version are kept first."""

T = TypeVar("T")

log = logging.getLogger("omlx.measure")


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of results: `versions` by package, `weights` (fingerprints) by model id."""

    machine: str
    versions: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, entries: Iterable[ModelEntry]) -> Conditions:
        """Return the conditions of this process with these models. Reads their directories."""
        versions = {"omlx": omlx.__version__, "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
        return cls(machine(), versions, {entry.id: fingerprint(entry) for entry in entries})


def stale(then: Conditions, now: Conditions) -> tuple[Reason, ...]:
    """Return why figures measured under `then` no longer hold; empty if valid.

    Models of a single side are ignored.
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
    """Return a hash over names, sizes and times of the weight files; empty without any."""
    stats = []
    try:
        for file in entry.files.weights:
            status = file.stat()
            stats.append((file.name, status.st_size, status.st_mtime_ns))
    except (ModelError, OSError):
        return ""
    return hashlib.sha256(repr(stats).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A record, the time of measurement in seconds since 1970, and the conditions."""

    record: Mapping[str, Any]
    at: float
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class History:
    """A model's stored trials: the last report, and the last result of each draft."""

    report: StoredResult | None = None
    drafts: Mapping[str, StoredResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Runs:
    """A model's stored benchmarks, newest first."""

    runs: list[StoredResult] = field(default_factory=list)


_HISTORY: Final = TypeAdapter(History)
_RUNS: Final = TypeAdapter(Runs)


@dataclass(frozen=True, slots=True)
class ResultStore:
    """The results in `home`, read at every call. Thread-safe."""

    home: Path

    def trials(self, model: str) -> History:
        return self._load(TRIALS, model, _HISTORY) or History()

    def save_trial(
        self, model: str, report: StoredResult, drafts: Mapping[str, StoredResult]
    ) -> None:
        """Replace the last trial and the results of `drafts`. Failures are logged, not raised."""

        def change(before: History | None) -> History:
            earlier = before.drafts if before is not None else {}
            return History(report, {**earlier, **drafts})

        self._change(TRIALS, model, _HISTORY, change)

    def runs(self, model: str) -> list[StoredResult]:
        """Return the benchmarks of a model, newest first."""
        return (self._load(BENCHMARKS, model, _RUNS) or Runs()).runs

    def add_run(self, model: str, run: StoredResult) -> None:
        """Add a benchmark and drop the oldest beyond `KEPT`. Failures are logged, not raised."""

        def change(stored: Runs | None) -> Runs:
            return Runs(keep([run, *(stored or Runs()).runs]))

        self._change(BENCHMARKS, model, _RUNS, change)

    def _load(self, kind: str, model: str, form: TypeAdapter[T]) -> T | None:
        try:
            return _parsed(kind, Measurements(self.home, kind).load(model), form)
        except Failure as error:
            _warn(f"{kind[:-1]} not read", error)
            return None

    def _change(
        self, kind: str, model: str, form: TypeAdapter[T], change: Callable[[T | None], T]
    ) -> None:
        def changed(text: str | None) -> str:
            return form.dump_json(change(_parsed(kind, text, form))).decode()

        try:
            Measurements(self.home, kind).change(model, changed)
        except Failure as error:
            _warn(f"{kind[:-1]} not kept", error)


def _parsed(kind: str, text: str | None, form: TypeAdapter[T]) -> T | None:
    if text is None:
        return None
    try:
        return form.validate_json(text)
    except ValidationError as error:
        _warn(f"{kind[:-1]} not read", error)
        return None


def _warn(event: str, error: Exception) -> None:
    log.warning(event, extra={"fields": {"detail": f"{error!r}"}})


def keep(runs: list[StoredResult]) -> list[StoredResult]:
    """Return at most `KEPT` runs in their order, preferring the newest of each version."""
    first: dict[str, StoredResult] = {}
    for run in runs:
        # Runs are ordered newest first.
        first.setdefault(run.conditions.versions.get("omlx", ""), run)
    newest = list(first.values())
    others = [run for run in runs if run not in newest]
    chosen = [*newest, *others][:KEPT]
    return [run for run in runs if run in chosen]
