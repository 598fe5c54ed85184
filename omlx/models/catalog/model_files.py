"""The small files of a model directory: configs, tokenizer, template. Checked before others read
them, who would wait for ever at the end of a pipe, or read a device until the memory is full.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from omlx.errors import ModelError, ModelGone

MAX_BYTES: Final = 256 << 20
"""The largest tokenizers, of 260,000 tokens, have 35 MB."""

_SUFFIXES: Final = frozenset({".jinja", ".json", ".model", ".txt"})


def check_files(directory: Path) -> None:
    """Raise ModelError for a folder that is gone, or holds a pipe, a device or a giant file."""
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        raise ModelGone("model.folder_missing") from None
    except OSError as error:
        raise ModelError("model.unreadable", detail=str(error.strerror)) from None
    for path in paths:
        if path.suffix not in _SUFFIXES or not path.exists():
            continue
        if not path.is_file():
            raise ModelError("model.not_a_file", file=path.name)
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ModelError(
                "model.file_too_large", file=path.name, size=size >> 20, limit=MAX_BYTES >> 20
            )
