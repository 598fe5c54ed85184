"""The hub's cache: `models--org--name` with `blobs` named by their hashes, snapshots and refs."""

from __future__ import annotations

from pathlib import Path


def folder_name(repository: str) -> str:
    """Return the name of a repository's folder, as huggingface_hub has it."""
    return "--".join(["models", *repository.split("/")])


def missing_bytes(blobs: Path, blob: str | None, size: int) -> int:
    """Return the bytes of a file that are not in the cache."""
    if blob is None:
        return size
    try:
        return 0 if (blobs / blob).exists() else max(0, size - part_of(blobs / blob).stat().st_size)
    except FileNotFoundError:
        return size


def part_of(blob: Path) -> Path:
    """Return the file that holds what has been downloaded of a blob."""
    return blob.with_name(f"{blob.name}.incomplete")
