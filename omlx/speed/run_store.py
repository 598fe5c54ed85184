"""Benchmarks on disk: one file per model in `OMLX_HOME/benchmarks`, its newest runs.

    {"format": …, "model": "org/name", "runs": [{"record": …, "at": …, "conditions": …}, …]}

The newest run comes first. A file that cannot be read counts as missing, with a line in the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omlx.errors import ConfigError
from omlx.settings.file import locked, read, write
from omlx.trial.result_store import StoredResult, file_name

FOLDER: Final = "benchmarks"
KEPT: Final = 12
"""Runs of a model that are kept: the newest of each version of omlx, then the newest others."""

log = logging.getLogger("omlx.speed")


@dataclass(frozen=True, slots=True)
class RunStore:
    """The files in `home`/benchmarks, read at every call. Safe to call from any thread."""

    home: Path

    def load(self, model: str, *, held: bool = False) -> list[StoredResult]:
        """Return the runs of a model, the newest first. `held`: the caller is inside `locked`."""
        path = self._path(model)
        try:
            content = read(path, held=held)
            if content.note is not None:
                raise content.note
            if content.values.get("model") != model:
                return []
            return [StoredResult.from_json(values) for values in content.values["runs"]]
        except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
            fields = {"file": str(path), "detail": f"{error!r}"}
            log.warning("benchmark not read", extra={"fields": fields})
            return []

    def add(self, model: str, run: StoredResult) -> None:
        """Add a run; the oldest ones go. A failure is logged, not raised."""
        try:
            with locked(self.home / FOLDER):
                runs = keep([run, *self.load(model, held=True)])
                values = {"model": model, "runs": [kept.to_json() for kept in runs]}
                write(self._path(model), values)
        except ConfigError as error:
            fields = {"model": model, "detail": error.message}
            log.warning("benchmark not kept", extra={"fields": fields})

    def _path(self, model: str) -> Path:
        return self.home / FOLDER / file_name(model)


def keep(runs: list[StoredResult]) -> list[StoredResult]:
    """Return at most `KEPT` runs, in their order: the newest of each version before others."""
    first: dict[str, StoredResult] = {}
    for run in runs:
        first.setdefault(run.conditions.versions.get("omlx", ""), run)
    newest = list(first.values())
    others = [run for run in runs if run not in newest]
    chosen = [*newest, *others][:KEPT]
    return [run for run in runs if run in chosen]
