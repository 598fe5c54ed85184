"""Deletion of models, and of the parts of downloads, from the hub's cache."""

from __future__ import annotations

import shutil
from pathlib import Path

from omlx.errors import Conflict, ModelError
from omlx.models.hub.cache import folder_name
from omlx.models.hub.job import Job


def discard_parts(home: Path, cache: Path, repository: str) -> None:
    """Delete what an unfinished download has left; a complete model, such as an older revision,
    stays.

    Raises Conflict while a process downloads it.
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
    """Delete a repository with all its revisions. Raises ModelError, and Conflict while a process
    downloads it."""
    job = _idle(home, repository)
    _delete(cache / folder_name(repository), repository)
    job.forget()


def _idle(home: Path, repository: str) -> Job:
    job = Job(home, repository)
    if job.runs:
        raise Conflict("pull.elsewhere", repository=repository)
    return job


def _delete(folder: Path, repository: str) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        detail = error.strerror or str(error)
        raise ModelError("pull.not_deleted", repository=repository, detail=detail) from error
