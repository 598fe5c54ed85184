"""Where models lie, in the order in which omlx looks. A place yields (id, directory) pairs and judges nothing.

Folders of other programs are only read. Ids come from folder names; nothing a client sends becomes a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from omlx.models.catalog.inspect_checkpoint import looks_like_model
from omlx.settings.schema import Settings

HUB_CACHE: Final = "hf-cache"
"""The source of what lies in the hub's cache."""

Found: TypeAlias = tuple[str, Path]


class Place(Protocol):
    @property
    def source(self) -> str:
        """What a list of models calls this place."""
        ...

    @property
    def root(self) -> Path:
        """Where it is, whether it is there or not."""
        ...

    def models(self) -> Iterator[Found]:
        """Every directory that may be a model, with its id. Reads folder names; modifies nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of models, one deep (`name`) or two deep (`org/name`), or a model itself."""

    source: str
    root: Path

    def models(self) -> Iterator[Found]:
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
    """The Hugging Face cache: `models--org--name/refs/main` names the snapshot, whose files link to blobs."""

    source: str
    root: Path

    def models(self) -> Iterator[Found]:
        for repo in _folders(self.root):
            if repo.name.startswith("models--"):
                yield _hub_id(repo), _main_snapshot(repo)


def places(settings: Settings, environ: Mapping[str, str], bundled: Path) -> list[Place]:
    """The places that `settings` leave on, first to last. `bundled` is the folder of the models that come with omlx."""
    user = Path(environ.get("HOME") or os.path.expanduser("~"))
    found: list[Place] = [Folder("model-dir", root) for root in settings.model_dir]
    if settings.home_models:
        found.append(Folder("home", settings.home / "models"))
    if settings.lmstudio:
        found.append(Folder("lmstudio", user / ".lmstudio/models"))
    if settings.hf_cache:
        found.append(HubCache(HUB_CACHE, _hub_root(user, environ)))
    if settings.bundled:
        found.append(Folder("bundled", bundled))
    return found


def _hub_root(user: Path, environ: Mapping[str, str]) -> Path:
    """As huggingface_hub has it."""
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or user / ".cache", "huggingface"
    )
    named = (
        environ.get("HF_HUB_CACHE")
        or environ.get("HUGGINGFACE_HUB_CACHE")
        or os.path.join(home, "hub")
    )
    return Path(os.path.expandvars(os.path.expanduser(named)))


def _hub_id(repo: Path) -> str:
    return repo.name.removeprefix("models--").replace("--", "/", 1)


def _main_snapshot(repo: Path) -> Path:
    """The snapshot that main points to; where nothing does, a directory that is not there, so that it is listed."""
    reference = repo / "refs/main"
    try:
        revision = reference.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        revision = ""
    if not revision.isprintable():  # zeros, after a power cut
        revision = ""
    return repo / "snapshots" / (Path(revision).name or "main")


def _own_id(model: Path) -> str:
    """The id of a model that was given by its path: the folder's name, or the repository's for a snapshot."""
    if model.parent.name == "snapshots" and model.parent.parent.name.startswith("models--"):
        return _hub_id(model.parent.parent)
    return model.name


def _folders(root: Path) -> list[Path]:
    """The folders in `root`, by name, links to folders too; none if it cannot be read.

    Hidden ones are left out, and those whose names are no text.
    """
    try:
        found = (
            path for path in root.iterdir() if not path.name.startswith(".") and _is_text(path.name)
        )
        return sorted(path for path in found if path.is_dir())
    except OSError:
        return []


def _is_text(name: str) -> bool:
    """Whether it can be shown to anybody: names of files are bytes, and need not mean anything."""
    return name.encode(errors="ignore").decode() == name
