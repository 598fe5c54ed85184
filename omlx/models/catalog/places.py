"""Places: the folders that are searched for models, in order of precedence.

A place yields (id, directory) pairs without inspecting them. Folders of other programs are only
read. Ids come from folder names; nothing a client sends becomes a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from omlx.models.catalog.entry import BUNDLED
from omlx.models.catalog.inspect_checkpoint import looks_like_model
from omlx.settings.schema import Settings

HUB_CACHE: Final = "hf-cache"
"""Source name of the Hugging Face cache."""

ModelDirectory: TypeAlias = tuple[str, Path]
"""A model id and its directory."""


class Place(Protocol):
    @property
    def source(self) -> str:
        """The name of this place in lists of models."""
        ...

    @property
    def root(self) -> Path:
        """The folder, which need not exist."""
        ...

    def models(self) -> Iterator[ModelDirectory]:
        """Yield every directory that may be a model. Reads folder names; modifies nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of models, one deep (`name`) or two deep (`org/name`), or a model itself."""

    source: str
    root: Path

    def models(self) -> Iterator[ModelDirectory]:
        if not os.path.isdir(self.root):
            return
        if looks_like_model(self.root):
            yield _own_id(self.root), self.root
            return
        for outer in _folders(self.root):
            if looks_like_model(outer):
                yield outer.name, outer
                continue
            for inner in _folders(outer):
                if looks_like_model(inner):
                    yield f"{outer.name}/{inner.name}", inner


@dataclass(frozen=True, slots=True)
class HubCache:
    """The Hugging Face cache: `models--org--name/refs/main` names a snapshot of links to blobs."""

    source: str
    root: Path

    def models(self) -> Iterator[ModelDirectory]:
        for repo in _folders(self.root):
            if repo.name.startswith("models--"):
                yield _hub_id(repo), _main_snapshot(repo)


def places(settings: Settings, environ: Mapping[str, str], bundled: Path) -> list[Place]:
    """Return the places that `settings` leave on; `bundled` holds the models of this package."""
    enabled: list[Place] = [Folder("model-dir", root) for root in settings.model_dir]
    if settings.home_models:
        enabled.append(Folder("home", settings.home / "models"))
    if settings.lmstudio:
        enabled.append(Folder("lmstudio", _user(environ) / ".lmstudio/models"))
    if settings.hf_cache:
        enabled.append(HubCache(HUB_CACHE, hub_root(environ)))
    if settings.bundled:
        enabled.append(Folder(BUNDLED, bundled))
    return enabled


def hub_root(environ: Mapping[str, str]) -> Path:
    """Return the cache folder, by the same variables as huggingface_hub."""
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or _user(environ) / ".cache", "huggingface"
    )
    root = (
        environ.get("HF_HUB_CACHE")
        or environ.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    return Path(os.path.expandvars(os.path.expanduser(root)))


def _user(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def _hub_id(repo: Path) -> str:
    return repo.name.removeprefix("models--").replace("--", "/", 1)


def _main_snapshot(repo: Path) -> Path:
    """Return the snapshot of `main`, or a missing directory so that the model is listed."""
    reference = repo / "refs/main"
    try:
        revision = reference.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        revision = ""
    if not revision.isprintable():  # zeros after a power cut
        revision = ""
    return repo / "snapshots" / (Path(revision).name or "main")


def _own_id(model: Path) -> str:
    """Return the id of a model given by path: its folder's name, or its repository's in a cache."""
    if model.parent.name == "snapshots" and model.parent.parent.name.startswith("models--"):
        return _hub_id(model.parent.parent)
    return model.name


def _folders(root: Path) -> list[Path]:
    """Return the folders in `root`, by name; none if it cannot be read.

    Links to folders count. Hidden folders and those whose names are not Unicode text do not.
    """
    try:
        return sorted(path for path in root.iterdir() if _is_listed(path.name) and path.is_dir())
    except OSError:
        return []


def _is_listed(name: str) -> bool:
    is_text = name.encode(errors="ignore").decode() == name  # file names are bytes
    return is_text and not name.startswith(".")
