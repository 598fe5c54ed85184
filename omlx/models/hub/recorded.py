"""A download under a record, so that every process of this machine sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from huggingface_hub.hf_api import RepoSibling

from omlx.errors import ModelError, Reason
from omlx.models.catalog.reference import Reference
from omlx.models.hub.failures import translated
from omlx.models.hub.job import Job, JobRecord
from omlx.models.hub.pull import blob_of, pull


def download(
    reference: Reference, home: Path, busy: Callable[[], None] = lambda: None
) -> tuple[Path, list[Reason]]:
    """Download a model as `pull` does, under a record that other processes see.

    Calls `busy` before it waits for a process that downloads the same repository. Raises
    ModelError.
    """
    job = Job(home, reference.repository)

    def planned(files: Sequence[RepoSibling]) -> None:
        job.write(JobRecord(reference, tuple(blob_of(file) for file in files)))

    with translated(reference.repository), job.claimed(busy):
        job.begin(reference)
        try:
            result = pull(reference, planned)
        except ModelError as error:
            job.fail(Reason(error.code, error.params))
            raise
        job.forget()
    return result
