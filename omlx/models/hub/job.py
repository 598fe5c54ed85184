"""Download job: files in OMLX_HOME/downloads, seen by every process, surviving all.

    models--org--name.json   the record: reference, files, failure
    models--org--name.lock   locked by the downloading process, the only writer of the record
    models--name.parts       partial download of a package, which the hub's cache cannot hold

A record without a process is a paused or interrupted download. A complete download has no record:
the model is in the hub's cache, `models--org--name` with `blobs` named by hash, snapshots and refs.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from omlx.errors import Conflict, ModelError, Reason, os_errors
from omlx.models.catalog.files import read_object
from omlx.models.catalog.reference import Reference
from omlx.storage import replace_file


def folder_name(repository: str) -> str:
    return "--".join(["models", *repository.split("/")])


def missing_bytes(blobs: Path, blob: str | None, size: int) -> int:
    """Return the bytes of a file missing from the cache."""
    if blob is None:
        return size
    try:
        return 0 if (blobs / blob).exists() else max(0, size - part_of(blobs / blob).stat().st_size)
    except FileNotFoundError:
        return size


def part_of(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


_FOLDER: Final = "downloads"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of a download: `files` are (hash, bytes), empty until the hub has answered.

    `failure`: reason of the last failure.
    """

    reference: Reference
    files: tuple[tuple[str | None, int], ...] = ()
    failure: Reason | None = None

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.files)

    def done_bytes(self, cache: Path, parts: Path) -> int:
        """Return the bytes on disk: in the hub's cache, or in the folder `parts`. Stats files."""
        if not self.reference.on_hub:
            return min(self.total_bytes, _folder_bytes(parts))
        blobs = cache / folder_name(self.reference.repository) / "blobs"
        return self.total_bytes - sum(missing_bytes(blobs, *file) for file in self.files)

    def to_json(self) -> dict[str, Any]:
        failure = self.failure
        reason = None if failure is None else {"code": failure.code, "params": failure.params}
        return {"model": str(self.reference), "files": self.files, "failure": reason}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> JobRecord:
        """Raises KeyError, TypeError, ValueError or ModelError for another format."""
        failure = record["failure"]
        return cls(
            Reference.parse(record["model"]),
            tuple((blob, int(size)) for blob, size in record["files"]),
            None if failure is None else Reason(failure["code"], dict(failure["params"])),
        )


class Job:
    """Files of one repository's download below `home`."""

    def __init__(self, home: Path, repository: str) -> None:
        self.folder = home / _FOLDER
        self._record = self.folder / f"{folder_name(repository)}.json"
        self._lock = self._record.with_suffix(".lock")
        self.parts = self._record.with_suffix(".parts")
        """Folder of an unfinished download outside the hub's cache."""

    def read(self) -> JobRecord | None:
        """Return the record; None without a readable record."""
        return _read(self._record)

    def begin(self, reference: Reference) -> None:
        """Record the start of a download; files of an earlier attempt count until the hub answers.

        Raises OSError.
        """
        before = self.read() or JobRecord(reference)
        self.write(replace(before, reference=reference, failure=None))

    def write(self, record: JobRecord) -> None:
        """Replace the record atomically. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._record, json.dumps(record.to_json(), ensure_ascii=False).encode())

    def fail(self, failure: Reason) -> None:
        """Record a failure, or delete a record without files, as nothing can be continued."""
        record = self.read()
        if record is None or not record.files:
            self.forget()
            return
        with suppress(OSError):  # such as a full disk; the process reports the failure, too
            self.write(replace(record, failure=failure))

    def forget(self) -> None:
        self._record.unlink(missing_ok=True)

    @property
    def runs(self) -> bool:
        """True while any process downloads the repository."""
        try:
            with self._lock.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def claimed(self, busy: Callable[[], None]) -> Iterator[None]:
        """Lock the job for this process. Calls `busy`, then waits, if already locked."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock.open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def unfinished(home: Path) -> list[JobRecord]:
    records = [_read(path) for path in sorted((home / _FOLDER).glob("models--*.json"))]
    return [record for record in records if record is not None]


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # renamed meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def _read(path: Path) -> JobRecord | None:
    try:
        return JobRecord.from_json(read_object(path))
    except (OSError, ValueError, KeyError, TypeError, ModelError):
        return None


def discard_parts(home: Path, cache: Path, repository: str) -> None:
    """Delete the partial files of a download, but no complete model (an older revision).

    Raises Conflict while a process downloads the repository.
    """
    job, folder = _idle(home, repository), cache / folder_name(repository)
    shutil.rmtree(job.parts, ignore_errors=True)
    if (folder / "refs").is_dir():  # a revision is named once it is complete
        for part in (folder / "blobs").glob("*.incomplete"):
            part.unlink(missing_ok=True)
    else:
        _delete(folder, repository)
    job.forget()


def delete_model(home: Path, cache: Path, repository: str) -> None:
    """Delete a repository with all revisions.

    Raises ModelError, and Conflict while a process downloads the repository.
    """
    job = _idle(home, repository)
    _delete(cache / folder_name(repository), repository)
    job.forget()


def _idle(home: Path, repository: str) -> Job:
    job = Job(home, repository)
    if job.runs:
        raise Conflict("pull.elsewhere", repository=repository)
    return job


def _delete(folder: Path, repository: str) -> None:
    failed = os_errors(ModelError, "pull.not_deleted", repository=repository)
    with failed, suppress(FileNotFoundError):
        shutil.rmtree(folder)
