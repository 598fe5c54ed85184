"""The results of trials on disk: one file per model in `OMLX_HOME/trials`.

    {"format": …, "model": "org/name", "report": {…}, "drafts": {"org/small": {…}}}

`report` is the last finished trial, `drafts` the last figures of each draft. Each says under which
conditions it was measured. A file that cannot be read counts as missing, with a line in the log:
losing it costs another trial.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from omlx.errors import ConfigError, Reason
from omlx.settings.file import locked, read, write
from omlx.trial.conditions import Conditions, stale

FOLDER: Final = "trials"
log = logging.getLogger("omlx.trial")


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A record, the time it was measured (seconds since 1970), and the conditions."""

    record: Mapping[str, Any]
    at: float
    conditions: Conditions

    def to_json(self) -> dict[str, Any]:
        return {"record": dict(self.record), "at": self.at, "conditions": self.conditions.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoredResult:
        """Raises KeyError, TypeError, ValueError for anything but the output of `to_json`."""
        conditions = Conditions.from_json(values["conditions"])
        return cls(dict(values["record"]), float(values["at"]), conditions)

    def stale(self, now: Conditions) -> tuple[Reason, ...]:
        return stale(self.conditions, now)


@dataclass(frozen=True, slots=True)
class History:
    """The stored results of one model: its last trial, and the last result of each draft."""

    report: StoredResult | None = None
    drafts: Mapping[str, StoredResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResultStore:
    """The files in `home`/trials, read at every call. Safe to call from any thread."""

    home: Path

    def load(self, model: str, *, held: bool = False) -> History:
        """Return what is stored of a model. `held`: the caller is inside `locked`."""
        path = self._path(model)
        try:
            content = read(path, held=held)
            if content.note is not None:
                raise content.note
            values = content.values
            if values.get("model") != model:
                return History()
            drafts = {}
            for draft, stored in values["drafts"].items():
                drafts[str(draft)] = StoredResult.from_json(stored)
            return History(StoredResult.from_json(values["report"]), drafts)
        except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
            fields = {"file": str(path), "detail": f"{error!r}"}
            log.warning("trial not read", extra={"fields": fields})
            return History()

    def save(self, model: str, report: StoredResult, drafts: Mapping[str, StoredResult]) -> None:
        """Replace the last trial and the results of `drafts`. A failure is logged, not raised."""
        try:
            with locked(self.home / FOLDER):
                merged = {**self.load(model, held=True).drafts, **drafts}
                records = {draft: stored.to_json() for draft, stored in merged.items()}
                values = {"model": model, "report": report.to_json(), "drafts": records}
                write(self._path(model), values)
        except ConfigError as error:
            fields = {"model": model, "detail": error.message}
            log.warning("trial not kept", extra={"fields": fields})

    def _path(self, model: str) -> Path:
        return self.home / FOLDER / file_name(model)


def file_name(model: str) -> str:
    """Return the name of a model's file: readable, and no other model's."""
    readable = re.sub(r"[^\w.-]+", "--", model)[:80]
    digest = hashlib.sha256(model.encode()).hexdigest()[:16]
    return f"{readable}-{digest}.json"
