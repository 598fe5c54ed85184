"""Fingerprints of model folders, by which machines find that their copies differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from omlx.errors import StageError
from omlx.models.catalog.weight_files import weight_files

_SAMPLE: Final = 64 << 10
"""Bytes hashed at the beginning (the header, or most of it) and in the middle of each file."""


def fingerprint(directory: Path) -> dict[str, str]:
    """Return a hash for the config and for each file of weights: of its size, its first bytes and
    those in its middle. Raises ModelError if there are no weights.
    """
    hashes = {}
    for file in (directory / "config.json", *weight_files(directory)):
        digest, size = hashlib.sha256(), file.stat().st_size
        with file.open("rb") as stream:
            digest.update(size.to_bytes(8, "big") + stream.read(_SAMPLE))
            stream.seek(max(0, size // 2 - _SAMPLE // 2))
            digest.update(stream.read(_SAMPLE))
        hashes[file.name] = digest.hexdigest()[:16]
    return hashes


def check_same(model: str, leader: Mapping[str, str], follower: Mapping[str, str]) -> None:
    """Raise StageError for the first file that is not the same on both machines."""
    for file in sorted({*leader, *follower}):
        ours, theirs = leader.get(file, "missing"), follower.get(file, "missing")
        if ours != theirs:
            raise StageError("stage.files", model=model, file=file, leader=ours, follower=theirs)
