"""The results of trials, from one run to the next: one file a model, in `OMLX_HOME/trials`.

    {"format": …, "model": "org/name", "report": {…}, "drafts": {"org/small": {…}}}

`report` is the last trial as it was told, `drafts` the last figures of each draft that was tried. All of it says under
which conditions it was measured. Losing a file costs another trial: whatever is wrong with it, it is as if it were not
there, and the log says so. No text that was asked or answered is in it.
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
    """Something that was measured, when (seconds since 1970), under which conditions."""

    record: Mapping[str, Any]
    at: float
    conditions: Conditions

    def to_json(self) -> dict[str, Any]:
        return {"record": dict(self.record), "at": self.at, "conditions": self.conditions.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StoredResult:
        """Raises KeyError, TypeError, ValueError for what `to_json` never gave."""
        return cls(
            dict(values["record"]), float(values["at"]), Conditions.from_json(values["conditions"])
        )

    def stale(self, now: Conditions) -> tuple[Reason, ...]:
        return stale(self.conditions, now)


@dataclass(frozen=True, slots=True)
class History:
    """What is known of one model: its last trial, and of each draft the last one that it was part of."""

    report: StoredResult | None = None
    drafts: Mapping[str, StoredResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResultStore:
    """The files in the folder `trials` of `home`, read at every call. Any thread may call."""

    home: Path

    def of(self, model: str, *, held: bool = False) -> History:
        """`held`: the caller is inside `locked`."""
        path = self._path(model)
        try:
            content = read(path, held=held)
            if content.note is not None:
                raise content.note
            values = content.values
            if values.get("model") != model:
                return History()
            drafts = {
                str(draft): StoredResult.from_json(each) for draft, each in values["drafts"].items()
            }
            return History(StoredResult.from_json(values["report"]), drafts)
        except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning(
                "trial not read", extra={"fields": {"file": str(path), "detail": f"{error!r}"}}
            )
            return History()

    def keep(self, model: str, report: StoredResult, drafts: Mapping[str, StoredResult]) -> None:
        """In place of the last one; what is known of other drafts stays. A failure is logged, not raised."""
        try:
            with locked(self.home / FOLDER):
                whole = {**self.of(model, held=True).drafts, **drafts}
                told = {draft: each.to_json() for draft, each in whole.items()}
                write(
                    self._path(model), {"model": model, "report": report.to_json(), "drafts": told}
                )
        except ConfigError as error:
            log.warning(
                "trial not kept", extra={"fields": {"model": model, "detail": error.message}}
            )

    def _path(self, model: str) -> Path:
        readable = re.sub(r"[^\w.-]+", "--", model)[:80]
        return (
            self.home
            / FOLDER
            / f"{readable}-{hashlib.sha256(model.encode()).hexdigest()[:16]}.json"
        )
