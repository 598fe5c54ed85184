"""Kept answers on disk: one private file for each, in `OMLX_HOME/receipts`.

Bounded in number and bytes; the oldest go first, and all after `MAX_AGE_S`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from omlx.atomic_write import replace_file
from omlx.errors import BadRequest, NotFound
from omlx.receipts.kept import KeptAnswer
from omlx.records import Receipt

FOLDER: Final = "receipts"
"""Where kept answers lie in the home folder."""

MAX_ANSWERS: Final = 4096
MAX_BYTES: Final = 128 << 20
MAX_AGE_S: Final = 30 * 86400
_SWEEP_EVERY: Final = 64
"""Answers kept between two looks at the bounds."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True)
class _Content:
    answer: KeptAnswer
    receipt: Receipt


_FILE: Final = TypeAdapter(_Content)


class AnswerStore:
    """The files in `folder`, which is created with the first answer. Any thread may call."""

    def __init__(
        self, folder: Path, *, max_answers: int = MAX_ANSWERS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._folder = folder
        self._max_answers, self._max_bytes = max_answers, max_bytes
        self._kept = count()

    def keep(self, answer: KeptAnswer, receipt: Receipt) -> None:
        """Write an answer; once in a while, delete those beyond the bounds. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = _FILE.dump_json(_Content(answer, receipt))
        replace_file(self._folder / f"{answer.id}{_SUFFIX}", text)
        if next(self._kept) % _SWEEP_EVERY == 0:
            self.sweep()

    def get(self, id: str) -> tuple[KeptAnswer, Receipt]:
        """Return a kept answer, and its receipt when it was written. Raises NotFound, and
        BadRequest for a damaged file.
        """
        if not _ID.fullmatch(id):
            raise NotFound("receipt.not_found", id=id)
        path = self._folder / f"{id}{_SUFFIX}"
        try:
            content = _FILE.validate_json(path.read_bytes())
        except OSError:
            raise NotFound("receipt.not_found", id=id) from None
        except ValueError as error:
            raise BadRequest("receipt.damaged", id=id) from error
        return content.answer, content.receipt

    def ids(self, id: str) -> list[str]:
        """Return the ids of the kept choices of an answer, or the id of the one it names."""
        if not _ID.fullmatch(id):
            return []
        if (self._folder / f"{id}{_SUFFIX}").is_file():
            return [id]
        names = [path.stem for path in self._folder.glob(f"{id}-*{_SUFFIX}")]
        return sorted(names, key=lambda name: (len(name), name))

    def kept(self, ids: Iterable[str]) -> frozenset[str]:
        """Return those answers, by their ids, whose first choice is kept."""
        known = filter(_ID.fullmatch, ids)
        return frozenset(id for id in known if (self._folder / f"{id}-0{_SUFFIX}").is_file())

    def sweep(self) -> None:
        """Delete what is too old or beyond the bounds, the oldest first."""
        files = []
        for entry in os.scandir(self._folder):
            if entry.name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):  # another process sweeps too
                    status = entry.stat()
                    files.append((status.st_mtime, status.st_size, entry.path))
        total, oldest = 0, time.time() - MAX_AGE_S
        for number, (at, size, path) in enumerate(sorted(files, reverse=True), start=1):
            total += size
            if number > self._max_answers or total > self._max_bytes or at < oldest:
                with suppress(FileNotFoundError):
                    os.unlink(path)
