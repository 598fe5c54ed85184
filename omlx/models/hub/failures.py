"""What can go wrong at the hub, as ModelErrors with a code: the network, the hub, the disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from omlx.errors import ModelError

# The bases are what the library's HTTP client raises, whichever client that is.
_CLIENT_ERRORS = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
_TRANSPORT_ERROR = next(base for base in _CLIENT_ERRORS if base is not OSError)
_OTHER_ERRORS: tuple[type[Exception], ...] = (*_CLIENT_ERRORS, ValueError, RuntimeError)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY: Final = 429


@contextmanager
def translated(repository: str, revision: str | None = None) -> Iterator[None]:
    """Raise what fails inside as a ModelError that names the repository and the cause."""
    try:
        yield
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
    except LocalEntryNotFoundError as error:  # the library could not ask for a file
        raise ModelError("pull.unreachable", detail=_cause(error)) from error
    except EntryNotFoundError as error:
        raise ModelError("pull.changed", repository=repository) from error
    except HfHubHTTPError as error:
        raise _refused(repository, error) from error
    except _OTHER_ERRORS as error:
        raise _failure(repository, error) from error


def _refused(repository: str, error: HfHubHTTPError) -> ModelError:
    if error.response is not None and error.response.status_code == _TOO_MANY:
        return ModelError("pull.too_many")
    return ModelError("pull.failed", repository=repository, detail=_one_line(error))


def _failure(repository: str, error: Exception) -> ModelError:
    if isinstance(error, _TRANSPORT_ERROR):
        return ModelError("pull.unreachable", detail=_one_line(error))
    if isinstance(error, OSError) and error.errno in _FULL:
        return ModelError("pull.disk_full", repository=repository)
    if isinstance(error, FileNotFoundError):
        return ModelError("pull.deleted", repository=repository)
    return ModelError("pull.failed", repository=repository, detail=_one_line(error))


def _cause(error: Exception) -> str:
    cause = error.__cause__
    return _one_line(cause if isinstance(cause, Exception) else error)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
