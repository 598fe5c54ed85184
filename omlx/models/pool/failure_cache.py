"""Drafts that a request named and that failed: refused at once until something has changed.

Finding out again would read all weights while other requests wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from omlx.errors import BadRequest, ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.folder_stamp import FolderStamp, folder_stamp
from omlx.settings.schema import Settings

TRANSIENT: Final = (
    "model.no_room",
    "model.unreadable",
    "model.weights_unreadable",
)
"""Errors that may not recur with the same files."""


@dataclass(frozen=True, slots=True)
class FailureKey:
    """What a failure depends on: two models, their files, and how they are loaded."""

    target: ModelEntry
    draft: ModelEntry
    dtype: str
    trusted: bool
    files: tuple[FolderStamp, FolderStamp]

    @classmethod
    def read(cls, target: ModelEntry, draft: ModelEntry, settings: Settings) -> FailureKey:
        """Return the key for the files as they are. Reads file attributes only."""
        files = folder_stamp(target.path), folder_stamp(draft.path)
        return cls(target, draft, settings.dtype, settings.trust_remote_code, files)


class FailureCache:
    """The last failure of each pair of target and draft."""

    def __init__(self) -> None:
        self._failures: dict[
            tuple[Path, Path], tuple[FailureKey, Callable[[], BadRequest | ModelError]]
        ] = {}

    @contextmanager
    def remember(self, key: FailureKey) -> Iterator[None]:
        """Remember a failure inside the block; raise the remembered one of an equal key."""
        pair = key.target.path, key.draft.path
        if pair in self._failures:
            known, make_error = self._failures[pair]
            if known == key:
                raise make_error()
        try:
            yield
        except (BadRequest, ModelError) as error:
            if error.code not in TRANSIENT:
                # a new error each time: the traceback of this one refers to weights
                make_error = partial(type(error), error.code, param=error.param, **error.params)
                self._failures[pair] = key, make_error
            raise
