"""Where the prefixes of a loaded model lie on disk: what their folder is named after."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from omlx.engine.disk.budget import DiskBudget
from omlx.engine.disk.cache import DiskCache
from omlx.engine.disk.folder import Fingerprint
from omlx.engine.disk.record import FORMAT
from omlx.engine.piece import Layout
from omlx.engine.thread import EngineThread
from omlx.errors import EngineDead, Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.fingerprint import fingerprint
from omlx.settings.file import file_stamp
from omlx.settings.schema import Settings


def open_disks(settings: Settings, engine: EngineThread) -> DiskCache | Reason:
    """Return the prefixes on disk as settings have them, or why there are none."""
    if settings.prefix_disk == 0:
        return Reason("prefix.disk.off.setting")

    def wake() -> None:
        with suppress(EngineDead):
            engine.call(_nothing)

    root = settings.prefix_dir or settings.home / "cache"
    return DiskCache(root, DiskBudget(settings.prefix_disk), wake)


def stop_engine(engine: EngineThread, disks: DiskCache | Reason) -> None:
    """Stop the engine once what was computed is on its way to disk, and wait for the disk."""
    if not isinstance(disks, DiskCache):
        engine.stop()
        return
    with suppress(EngineDead):
        engine.call(disks.close).result()
    engine.stop()
    disks.join()


def prefix_fingerprint(entry: ModelEntry, role: str, dtype: str, layout: Layout) -> Fingerprint:
    """Return what prefixes of a model depend on: its files with their times, the libraries that
    compute, the layout of the cache. `role` is target or draft. Raises OSError, ModelError.
    """
    facts = {"dtype": dtype, "layout": repr(layout), "format": str(FORMAT)}
    tokenizers = (file.name for file in entry.path.glob("tokenizer*"))
    for name, content in fingerprint(entry.path).items():
        facts[name] = f"{content} {file_stamp(entry.path / name)}"
    for name in sorted(tokenizers):
        facts[name] = str(file_stamp(entry.path / name))
    for package in ("mlx", "mlx-lm", "mlx-vlm"):
        facts[package] = _version(package)
    return Fingerprint(entry.id, role, facts)


def _nothing() -> None:
    """Work that only wakes the engine thread: it looks at its rows again."""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
