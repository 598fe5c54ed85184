"""Drafts that a request named and that cannot be used: as long as nothing has changed, the next one hears so at once.

To find it out anew would mean to read all weights again, while everybody else waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from omlx.errors import BadRequest, ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.settings.schema import Settings

PASSING: Final = (
    "model.no_room",
    "model.load_cancelled",
    "model.unreadable",
    "model.weights_unreadable",
)
"""What the next try may find otherwise, in the same folders."""

Files: TypeAlias = tuple[tuple[str | int, ...], ...]


@dataclass(frozen=True, slots=True)
class FailureKey:
    """What a refusal rests on: two models as discovery knows them, their files, and how they are read."""

    target: ModelEntry
    draft: ModelEntry
    dtype: str
    trusted: bool
    files: tuple[Files, Files]

    @classmethod
    def now(cls, target: ModelEntry, draft: ModelEntry, settings: Settings) -> FailureKey:
        """Looks at the files, and opens none."""
        files = files_of(target.path), files_of(draft.path)
        return cls(target, draft, settings.dtype, settings.trust_remote_code, files)


class FailureCache:
    def __init__(self) -> None:
        self._known: dict[
            tuple[Path, Path], tuple[FailureKey, Callable[[], BadRequest | ModelError]]
        ] = {}

    @contextmanager
    def remembered(self, circumstances: FailureKey) -> Iterator[None]:
        """Raise what was raised inside the last time, if it was under the same circumstances."""
        pair = circumstances.target.path, circumstances.draft.path
        known = self._known.get(pair)
        if known is not None and known[0] == circumstances:
            raise known[1]()
        try:
            yield
        except (BadRequest, ModelError) as error:
            if (
                error.code not in PASSING
            ):  # made anew each time: the frames of this one hold weights
                again = partial(type(error), error.code, param=error.param, **error.params)
                self._known[pair] = circumstances, again
            raise


def files_of(folder: Path) -> Files:
    """What changes when one of them does; nothing for a folder that is gone."""
    try:
        found = [
            (path.name, path.stat() if path.exists() else path.lstat())
            for path in sorted(folder.iterdir())
        ]
    except OSError:
        return ()
    return tuple(
        (name, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns) for name, at in found
    )
