"""Models as a person names them on a command line: by id, by its last part, or by the folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from omlx.models.catalog.discovery import Registry, discover
from omlx.models.catalog.places import Folder
from omlx.settings.configuration import Configuration


def named(names: Sequence[str], configuration: Configuration) -> tuple[list[str], Registry]:
    """The names with those that are folders turned into ids, and all models, in those folders first."""
    look = look_in([path for name in names if (path := path_of(name)) is not None], configuration)
    return [id_of(name) for name in names], look()


def look_in(folders: Sequence[Path], configuration: Configuration) -> partial[Registry]:
    """A look around, in these folders first; it may be repeated."""
    settings = configuration.resolve().settings
    return partial(
        discover, replace(settings, model_dir=(*folders, *settings.model_dir)), os.environ
    )


def path_of(name: str) -> Path | None:
    """The directory that `name` is, where it is written as a path."""
    path = os.path.expanduser(name)
    return (
        Path(path).absolute() if name.startswith((".", "/", "~")) and os.path.isdir(path) else None
    )


def id_of(name: str) -> str:
    path = path_of(name)
    return name if path is None else next((found for found, _ in Folder("", path).models()), name)
