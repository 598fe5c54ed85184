"""Downloads from the hub to its cache, verified by the hub's published checksums.

The library resolves HF_ENDPOINT, HF_HOME and tokens, but does not continue the download of another
process. Weights are therefore fetched here, with the library's own function, to
`blobs/<sha256>.incomplete`. Failures (network, hub, disk) are ModelErrors with a code.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, errors, hf_hub_url, snapshot_download
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils._headers import build_hf_headers

from omlx.errors import ModelError, Reason, one_line
from omlx.models.catalog.package import FILE
from omlx.models.catalog.reference import Reference
from omlx.models.hub.job import Job, JobRecord, folder_name, missing_bytes, part_of

WEIGHTS: Final = ("model*.safetensors", "mtp.safetensors", "mtp/*.safetensors")
"""Files that are loaded: weights, and a draft head that comes along."""

_BESIDE: Final = (*WEIGHTS, "*_Pooling/config.json", "*_LogitScore/config.json")
_AT_TOP: Final = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_SPARE_BYTES = 1 << 30

Planned = Callable[[Sequence[RepoSibling]], None]
"""Callback with the files of a download, before the first is fetched."""


def pull(reference: Reference, planned: Planned = lambda files: None) -> tuple[Path, list[Reason]]:
    """Download missing files of a model; return its directory and notes on unchanged files.

    Continues interrupted downloads and verifies every file, present ones too. Differing files are
    deleted if downloaded, and left if a person put them there. A package written by a person is
    copied to the newer commit. Raises ModelError.
    """
    repository, revision = reference.repository, reference.revision
    notes: list[Reason] = []
    with translated(repository, revision):
        folder = Path(constants.HF_HUB_CACHE) / folder_name(repository)
        blobs = folder / "blobs"
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
        files = usable_files(info)
        planned(files)
        _check_space(sum(missing_bytes(blobs, *blob_of(file)) for file in files))
        fetched = set()
        for file in files:
            if _fetch_weights(blobs, repository, info.sha, file):
                fetched.add(file.rfilename)
        # before the library points the revision to the new commit: repeated after an interruption
        package = _copy_package(folder, revision or constants.DEFAULT_REVISION, str(info.sha))
        if package is not None:
            notes.append(Reason("pull.taken_along", {"file": str(package)}))
        names = [file.rfilename for file in files]
        # By commit first: the revision is repointed only once the new snapshot is complete.
        snapshot = Path(snapshot_download(repository, revision=info.sha, allow_patterns=names))
        unverified = [file for file in files if file.rfilename not in fetched]
        notes += _verify(unverified, snapshot, blobs)
        snapshot_download(repository, revision=revision, allow_patterns=names)
    return snapshot, notes


def usable_files(info: ModelInfo) -> list[RepoSibling]:
    """Return the files to download: weights, pooling configs, and top-level files.

    Raises ModelError without weights.
    """
    siblings = info.siblings or []
    files = [file for file in siblings if _wanted(file.rfilename)]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        if any(file.rfilename.endswith(".gguf") for file in siblings):
            raise ModelError("pull.gguf", repository=info.id)
        raise ModelError("pull.no_weights", repository=info.id)
    return files


def _wanted(name: str) -> bool:
    patterns = _BESIDE if "/" in name else (*_BESIDE, *_AT_TOP)
    return any(fnmatch(name, pattern) for pattern in patterns)


def weight_bytes(files: Iterable[RepoSibling]) -> int:
    weights = [file for file in files if any(fnmatch(file.rfilename, each) for each in WEIGHTS)]
    return sum(file.size or 0 for file in weights)


def blob_of(file: RepoSibling) -> tuple[str | None, int]:
    """Return a file's hash, its name in the cache, and its bytes."""
    return file.lfs.sha256 if file.lfs is not None else file.blob_id, file.size or 0


def _verify(files: list[RepoSibling], snapshot: Path, blobs: Path) -> Iterator[Reason]:
    """Compare files with the hub's checksums.

    Yields a note for a differing file put there by a person; deletes a downloaded one and raises
    ModelError.
    """
    for file in files:
        path = snapshot / file.rfilename
        if _matches(path, file):
            continue
        if _is_downloaded(blobs, path):
            raise _corrupt(path, file)
        yield Reason("pull.kept", {"file": str(path)})


def _check_space(needed: int) -> None:
    """Raise ModelError unless the disk of the cache has `needed` bytes and a reserve."""
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if needed and needed + _SPARE_BYTES > free:
        needed_gb, free_gb = round(needed / 1e9, 1), round(free / 1e9, 1)
        raise ModelError("pull.no_space", needed_gb=needed_gb, free_gb=free_gb)


def _fetch_weights(blobs: Path, repository: str, commit: str | None, file: RepoSibling) -> bool:
    """Download a large file to the cache, or its remainder; return whether needed."""
    if file.lfs is None or file.size is None:
        return False
    blobs.mkdir(parents=True, exist_ok=True)
    blob = blobs / file.lfs.sha256
    part = part_of(blob)
    if blob.exists():
        return False
    with part.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if blob.exists():  # another process has just finished it
            return False
        start = min(stream.tell(), file.size)
        stream.truncate(start)
        source = hf_hub_url(repository, file.rfilename, revision=commit)
        headers = build_hf_headers()
        http_get(source, stream, resume_size=start, headers=headers, expected_size=file.size)
        stream.flush()
        if not _matches(part, file):
            raise _corrupt(part, file)
        part.rename(blob)
    return True


def _copy_package(folder: Path, revision: str, commit: str) -> Path | None:
    """Copy a package written by a person to the snapshot of `commit`; return the copy."""
    pointer = folder / "refs" / revision
    current = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else commit
    blobs, snapshots = folder / "blobs", folder / "snapshots"
    old, new = snapshots / current / FILE, snapshots / commit / FILE
    if current == commit or not _is_personal(blobs, old) or _is_personal(blobs, new):
        return None
    new.parent.mkdir(parents=True, exist_ok=True)
    beside = new.with_name(f".{FILE}.{os.getpid()}")
    shutil.copy2(old, beside, follow_symlinks=False)
    return beside.replace(new)


def _matches(path: Path, file: RepoSibling) -> bool:
    """Return whether a file has the hub's published size and checksum."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return False
    if file.lfs is not None:
        digest, expected = hashlib.sha256(), file.lfs.sha256
    elif file.blob_id is not None:  # git's hash of a blob
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        expected = file.blob_id
    else:
        return True
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: digest).hexdigest() == expected


def _is_personal(blobs: Path, path: Path) -> bool:
    return path.is_file() and not _is_downloaded(blobs, path)


def _is_downloaded(blobs: Path, path: Path) -> bool:
    """Return whether `path` is a link into `blobs`; editors replace links by files.

    Only the first link counts: a blob may itself link to a store shared by repositories.
    """
    return path.is_symlink() and (path.parent / path.readlink()).parent.resolve() == blobs.resolve()


def _corrupt(path: Path, file: RepoSibling) -> ModelError:
    # delete the blob and its link: the next download starts over
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return ModelError("pull.corrupt", file=file.rfilename)


# The bases are what the library's HTTP client raises, whichever client that is.
_CLIENT_ERRORS = cast(tuple[type[Exception], ...], errors.HfHubHTTPError.__bases__)
_TRANSPORT_ERROR = next(base for base in _CLIENT_ERRORS if base is not OSError)
_OTHER_ERRORS: tuple[type[Exception], ...] = (*_CLIENT_ERRORS, ValueError, RuntimeError)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY: Final = 429


@contextmanager
def translated(repository: str, revision: str | None = None) -> Iterator[None]:
    """Turn errors inside into ModelErrors that name the repository and the cause."""
    try:
        yield
    except errors.HFValidationError as error:
        raise ModelError("draft.malformed", draft=repository) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError("pull.no_revision", repository=repository, revision=revision) from error
    except errors.GatedRepoError as error:
        raise ModelError("pull.gated", repository=repository) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError("pull.not_found", repository=repository) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError("pull.offline") from error
    except errors.LocalEntryNotFoundError as error:  # the library could not ask for a file
        cause = error.__cause__
        detail = one_line(cause if isinstance(cause, Exception) else error)
        raise _unreachable(detail) from error
    except errors.EntryNotFoundError as error:
        raise ModelError("pull.changed", repository=repository) from error
    except errors.HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == _TOO_MANY:
            raise ModelError("pull.too_many") from error
        detail = one_line(error)
        raise ModelError("pull.failed", repository=repository, detail=detail) from error
    except _OTHER_ERRORS as error:
        raise _failure(repository, error) from error


def _failure(repository: str, error: Exception) -> ModelError:
    if isinstance(error, _TRANSPORT_ERROR):
        return _unreachable(one_line(error))
    if isinstance(error, OSError) and error.errno in _FULL:
        return ModelError("pull.disk_full", repository=repository)
    if isinstance(error, FileNotFoundError):
        return ModelError("pull.deleted", repository=repository)
    return ModelError("pull.failed", repository=repository, detail=one_line(error))


def _unreachable(detail: str) -> ModelError:
    host = urlsplit(constants.ENDPOINT).hostname or constants.ENDPOINT
    return ModelError("pull.unreachable", host=host, detail=detail)


def download(
    reference: Reference, home: Path, busy: Callable[[], None] = lambda: None
) -> tuple[Path, list[Reason]]:
    """Download a model as `pull` does, under a record seen by other processes.

    Calls `busy` before waiting for a process that downloads the same repository. Raises
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
            job.fail(error.reason)
            raise
        job.forget()
    return result
