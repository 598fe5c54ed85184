"""Discovery: scans all places, in order of precedence, into a model registry.

A place yields (id, directory) pairs without inspecting them; folders of other programs are only
read. Ids come from folder names; nothing sent by a client becomes a path. A usable directory is
marked as shadowed if an earlier usable one has the same id. Names with control characters, which a
terminal or a log would interpret, make a model unusable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from omlx.errors import Param, Reason
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.inspect_checkpoint import has_config, inspect_checkpoint, looks_like_model
from omlx.models.catalog.registry import BUNDLED as BUNDLED_SOURCE
from omlx.models.catalog.registry import ModelEntry, Registry, Status
from omlx.settings.schema import Settings

BUNDLED = Path(__file__).resolve().parents[2] / "bundled"


def discover(settings: Settings, environ: Mapping[str, str]) -> Registry:
    """Scan the places enabled by `settings`. Reads folders and configs; never raises."""
    return discovery(settings, environ).scan()


def discovery(settings: Settings, environ: Mapping[str, str]) -> Discovery:
    return Discovery(places(settings, environ, BUNDLED))


def scan_places(searched: Iterable[Place]) -> Registry:
    return Discovery(searched).scan()


class Discovery:
    """Repeated scans of places; a directory is inspected again only after a file has changed."""

    def __init__(self, searched: Iterable[Place]) -> None:
        self._places = tuple(searched)
        self._known: dict[tuple[str, Path], tuple[ModelFiles, ModelEntry]] = {}
        self._registry = Registry()
        self._lock = Lock()

    def scan(self) -> Registry:
        """Return the current models: the same registry object if nothing has changed.

        A directory reached from two places is listed once. Thread-safe.
        """
        with self._lock:
            entries = tuple(self._entries())
            if entries != self._registry.entries:
                self._registry = Registry(entries)
            return self._registry

    def _entries(self) -> Iterator[ModelEntry]:
        seen: set[str] = set()
        first: dict[str, ModelEntry] = {}
        known, self._known = self._known, {}
        for place in self._places:
            for model_id, directory in place.models():
                resolved = os.path.realpath(directory)
                if resolved in seen:
                    continue
                seen.add(resolved)
                key, files = (model_id, directory), ModelFiles.at(directory)
                before, entry = known.get(key, (None, None))
                if entry is None or before != files:
                    entry = inspect_checkpoint(model_id, directory, place.source)
                self._known[key] = files, entry
                winner = first.setdefault(model_id, entry) if entry.usable else entry
                if winner is not entry:
                    by: dict[str, Param] = {"by": str(winner.path), "source": winner.source}
                    reason = Reason("model.shadowed", by)
                    entry = replace(entry, status=Status.SHADOWED, reason=reason)
                yield entry


HUB_CACHE: Final = "hf-cache"
"""Source name of the Hugging Face cache."""
COPIES: Final = "hf-copies"
"""Source name of plain folders in the cache, which huggingface_hub neither makes nor deletes."""

_REPOSITORY: Final = "models--"
_OTHER_REPOSITORIES: Final = ("datasets--", "spaces--")
_DEPTH: Final = 3
"""Folder levels between a place and a model: `publisher/family/name`."""

ModelDirectory: TypeAlias = tuple[str, Path]

_LM_STUDIO: Final = (".lmstudio/models", ".cache/lm-studio/models")
"""LM Studio's folder, and its folder before version 0.3.6."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of models up to `_DEPTH` deep, or a model itself; it need not exist.

    Cache repositories that users copied into the folder are models too. Weights without a config
    are listed, and do not hide sibling folders. `source` is its name in lists of models.
    """

    source: str
    root: Path

    def models(self) -> Iterator[ModelDirectory]:
        """Yield every directory that may be a model. Reads folder names."""
        if not os.path.isdir(self.root):
            return
        if self.root.name.startswith(_REPOSITORY) and os.path.isdir(self.root / "snapshots"):
            yield _hub_id(self.root), _hub_directory(self.root)
            return
        if looks_like_model(self.root):
            repository = repository_of(self.root)
            yield self.root.name if repository is None else _hub_id(repository), self.root
            if has_config(self.root):
                return
        yield from _models(self.root, "", _DEPTH)


@dataclass(frozen=True, slots=True)
class HubCache:
    """Repositories of the Hugging Face cache.

    `models--org--name/refs/main` names a snapshot of links to blobs.
    """

    source: str
    root: Path

    def models(self) -> Iterator[ModelDirectory]:
        for repo in _folders(self.root):
            if repo.name.startswith(_REPOSITORY):
                yield _hub_id(repo), _hub_directory(repo)


Place: TypeAlias = Folder | HubCache


def places(settings: Settings, environ: Mapping[str, str], bundled: Path) -> list[Place]:
    """Return the places enabled by `settings`; `bundled` holds the models of this package."""
    enabled: list[Place] = [Folder("model-dir", root) for root in settings.model_dir]
    if settings.home_models:
        enabled.append(Folder("home", settings.home / "models"))
    if settings.lmstudio:
        enabled += [Folder("lmstudio", _user(environ) / folder) for folder in _LM_STUDIO]
    if settings.hf_cache:
        enabled.append(HubCache(HUB_CACHE, hub_root(environ)))
        enabled.append(Folder(COPIES, hub_root(environ)))
    if settings.bundled:
        enabled.append(Folder(BUNDLED_SOURCE, bundled))
    return enabled


def hub_root(environ: Mapping[str, str]) -> Path:
    """Return the cache folder, from the environment variables of huggingface_hub."""
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
    return repo.name.removeprefix(_REPOSITORY).replace("--", "/", 1)


def _models(folder: Path, prefix: str, depth: int) -> Iterator[ModelDirectory]:
    """Yield the models below `folder`, with ids starting with `prefix`."""
    for path in _folders(folder):
        if path.name.startswith(_OTHER_REPOSITORIES):
            continue
        if path.name.startswith(_REPOSITORY):
            yield _hub_id(path), _hub_directory(path)
            continue
        model_id = prefix + path.name
        if looks_like_model(path):
            yield model_id, path
            if has_config(path):
                continue
        if depth > 1:
            yield from _models(path, f"{model_id}/", depth - 1)


def _hub_directory(repo: Path) -> Path:
    """Return the snapshot of `main`, or `repo` itself if files were copied into it.

    Without a reference to `main` a single snapshot counts, unless a download is unfinished.
    Repositories without a usable snapshot yield a missing directory, in order to be listed.
    """
    snapshots = _folders(repo / "snapshots")
    if not snapshots and looks_like_model(repo):
        return repo
    unfinished, reference = any((repo / "blobs").glob("*.incomplete")), repo / "refs/main"
    if len(snapshots) == 1 and not unfinished and not reference.exists():
        return snapshots[0]
    try:
        revision = reference.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        revision = ""
    if not revision.isprintable():  # zeros after a power cut
        revision = ""
    return repo / "snapshots" / (Path(revision).name or "main")


def repository_of(model: Path) -> Path | None:
    """Return the cache repository that a model's folder belongs to, or is; None outside of one."""
    folder = model.parent.parent if model.parent.name == "snapshots" else model
    return folder if folder.name.startswith(_REPOSITORY) else None


def _folders(root: Path) -> list[Path]:
    """Return the folders in `root`, by name, numbers by value; none if unreadable.

    Links to folders count. Hidden folders and names other than Unicode text do not.
    """
    try:
        folders = [path for path in root.iterdir() if _is_listed(path.name) and path.is_dir()]
    except OSError:
        return []

    def by_number(path: Path) -> tuple[list[str | int], str]:
        parts = re.split(r"(\d+)", path.name)  # texts alternate with numbers
        return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name

    return sorted(folders, key=by_number)


def _is_listed(name: str) -> bool:
    is_text = name.encode(errors="ignore").decode() == name  # file names are bytes
    return is_text and not name.startswith(".")
