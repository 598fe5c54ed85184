"""Fetching a model from the hub into its cache, and making sure that what arrived is what was
promised.

The library downloads and knows HF_ENDPOINT, HF_HOME and tokens. It does not continue what another
process began, so weights are fetched here, by its own function, into a file that stays:
`blobs/<sha256>.incomplete` in the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, cast

from huggingface_hub import HfApi, constants, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils._headers import build_hf_headers

from omlx.engine.types import Reason
from omlx.errors import ModelError
from omlx.models.catalog.reference import Reference
from omlx.models.package.package import FILE

WANTED: Final = ("model*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_POOLING: Final = "*_Pooling/config.json"
_SPARE_BYTES = 1 << 30
_CHUNK = 1 << 20
# Its bases are what the library's HTTP client raises, whichever client that is.
_ERRORS = cast(tuple[type[Exception], ...], (*HfHubHTTPError.__bases__, ValueError, RuntimeError))


def pull(reference: Reference) -> tuple[Path, list[Reason]]:
    """Fetch what is missing of a model; returns its directory in the cache, and what is to be said
    of files that were left as they are. Raises ModelError.

    What an interrupted download left is continued. Every file is compared with what the hub says it
    is, also those that were here before. One that differs is thrown away if it was fetched, and
    left if a person put it there. The package that a person wrote goes with the model to the hub's
    newer commit.
    """
    repository, revision = reference.repository, reference.revision
    notes: list[Reason] = []
    try:
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(
            repo_id=repository, repo_type="model"
        )
        blobs = folder / "blobs"
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
        files = _files(info, reference)
        _check_space(sum(_missing_bytes(blobs, file) for file in files))
        fetched = {
            file.rfilename for file in files if _fetch_weights(blobs, repository, info.sha, file)
        }
        if (
            package := _take_along(folder, revision or constants.DEFAULT_REVISION, str(info.sha))
        ) is not None:
            notes.append(Reason("pull.taken_along", {"file": str(package)}))
        names = [file.rfilename for file in files]
        # By its commit first: what the revision means is a whole model at any time, the old one until then.
        snapshot = Path(snapshot_download(repository, revision=info.sha, allow_patterns=names))
        notes += _checked(files, snapshot, blobs, fetched)
        snapshot_download(repository, revision=revision, allow_patterns=names)
    except HFValidationError as error:
        raise ModelError("draft.malformed", draft=repository) from error
    except RevisionNotFoundError as error:
        raise ModelError("pull.no_revision", repository=repository, revision=revision) from error
    except GatedRepoError as error:
        raise ModelError("pull.gated", repository=repository) from error
    except RepositoryNotFoundError as error:
        raise ModelError("pull.not_found", repository=repository) from error
    except OfflineModeIsEnabled as error:
        raise ModelError("pull.offline") from error
    except _ERRORS as error:
        raise ModelError("pull.failed", repository=repository, detail=_said(error)) from error
    return snapshot, notes


def _files(info: ModelInfo, reference: Reference) -> list[RepoSibling]:
    """The files of the repository that omlx can use: those at its top, and how a model pools that
    gives embeddings.

    Raises ModelError if there are no weights.
    """
    siblings = info.siblings or []
    files = [
        file for file in siblings if any(fnmatch(file.rfilename, pattern) for pattern in WANTED)
    ]
    files = [
        file for file in files if "/" not in file.rfilename or fnmatch(file.rfilename, _POOLING)
    ]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        gguf = any(file.rfilename.endswith(".gguf") for file in siblings)
        raise ModelError(
            "pull.gguf" if gguf else "pull.no_weights", repository=reference.repository
        )
    return files


def _checked(
    files: list[RepoSibling], snapshot: Path, blobs: Path, known: set[str]
) -> Iterator[Reason]:
    """Compare the files of a snapshot, but for the `known` ones, with what the hub says of them.

    What a person has put there stays, and is told; what was fetched is thrown away, and raises
    ModelError.
    """
    for file in files:
        path = snapshot / file.rfilename
        if file.rfilename in known or _as_promised(path, file):
            continue
        if _links_into(blobs, path):
            raise _corrupt(path, file)
        yield Reason("pull.kept", {"file": str(path)})


def _missing_bytes(blobs: Path, file: RepoSibling) -> int:
    """How much of a file is still to come."""
    name = file.lfs.sha256 if file.lfs is not None else file.blob_id
    if name is None or file.size is None:
        return file.size or 0
    if (blobs / name).exists():
        return 0
    part = blobs / f"{name}.incomplete"
    return max(0, file.size - (part.stat().st_size if part.exists() else 0))


def _check_space(needed: int) -> None:
    """Raises ModelError if so many bytes do not fit into the cache."""
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if needed and needed + _SPARE_BYTES > free:
        raise ModelError(
            "pull.no_space", needed_gb=round(needed / 1e9, 1), free_gb=round(free / 1e9, 1)
        )


def _fetch_weights(blobs: Path, repository: str, commit: str | None, file: RepoSibling) -> bool:
    """Bring a large file into the cache, from where it stopped last time; False if there is nothing
    to do.
    """
    if file.lfs is None or file.size is None:
        return False
    blobs.mkdir(parents=True, exist_ok=True)
    blob = blobs / file.lfs.sha256
    part = blobs / f"{blob.name}.incomplete"
    if blob.exists():
        return False
    with part.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        if blob.exists():  # another process has just brought it
            return False
        here = min(stream.tell(), file.size)
        stream.truncate(here)
        source = hf_hub_url(repository, file.rfilename, revision=commit)
        http_get(
            source, stream, resume_size=here, headers=build_hf_headers(), expected_size=file.size
        )
        stream.flush()
        if not _as_promised(part, file):
            raise _corrupt(part, file)
        part.rename(blob)
    return True


def _take_along(folder: Path, revision: str, commit: str) -> Path | None:
    """Put the package that a person wrote for a revision beside the model that it will be now;
    where it is then.

    Comes before the library lets the revision mean the new commit, so that one that is interrupted
    comes again.
    """
    named = folder / "refs" / revision
    before = named.read_text(encoding="utf-8").strip() if named.is_file() else commit
    old, new = (folder / "snapshots" / each / FILE for each in (before, commit))
    if (
        before == commit
        or not _put_there(folder / "blobs", old)
        or _put_there(folder / "blobs", new)
    ):
        return None
    new.parent.mkdir(parents=True, exist_ok=True)
    beside = new.with_name(f".{FILE}.{os.getpid()}")
    shutil.copy2(old, beside, follow_symlinks=False)
    return beside.replace(new)


def _as_promised(path: Path, promised: RepoSibling) -> bool:
    """Whether a file is what the hub says it is."""
    size = path.stat().st_size
    if promised.size is not None and size != promised.size:
        return False
    if promised.lfs is not None:
        digest, expected = hashlib.sha256(), promised.lfs.sha256
    elif promised.blob_id is not None:
        digest, expected = (
            hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False),
            promised.blob_id,
        )
    else:
        return True
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == expected


def _put_there(blobs: Path, path: Path) -> bool:
    """Whether it is a person's file."""
    return path.is_file() and not _links_into(blobs, path)


def _links_into(blobs: Path, path: Path) -> bool:
    """Whether it is a link as downloads make them; `omlx package write`, like many an editor, puts
    a file in its place.

    Only the first step counts: a blob may itself be a link, into a store that all repositories
    share.
    """
    return path.is_symlink() and (path.parent / path.readlink()).parent.resolve() == blobs.resolve()


def _corrupt(path: Path, promised: RepoSibling) -> ModelError:
    """The error, once the file is removed from the cache."""
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    return ModelError("pull.corrupt", file=promised.rfilename)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
