"""Prefixes of a loaded model on disk: keys of their folders."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omlx.engine.disk.folder import DiskBudget, Fingerprint
from omlx.engine.disk.record import FORMAT
from omlx.engine.disk.tier import Disk, DiskCache
from omlx.engine.piece import Layout
from omlx.engine.thread import EngineThread
from omlx.errors import EngineDead, Reason
from omlx.models.catalog.facts import fingerprint, versions
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import LoadedModel
from omlx.models.pool.speculation import DraftChoice
from omlx.settings.file import file_stamp
from omlx.settings.schema import STRICT, Settings

TARGET: Final = "target"
DRAFT: Final = "draft"
"""Roles of a model — target and draft prefixes are separate: drafts read text alone."""

STOP_S: Final = 10.0
"""Seconds — limit for stopping engine thread and disk together."""

_DEAD_S: Final = 1.0
"""Seconds — grace for an abandoned thread, which may be about to return."""


def open_disks(settings: Settings, engine: EngineThread) -> DiskCache | Reason:
    """Return the disk cache of prefixes, or the reason for none."""
    if settings.prefix_disk == 0:
        return Reason("prefix.disk.off.setting")

    def wake() -> None:
        with suppress(EngineDead):
            engine.call(lambda: None)  # any call makes the engine look at its rows

    return DiskCache(prefix_root(settings), DiskBudget(settings.prefix_disk), wake)


def prefix_root(settings: Settings) -> Path:
    return settings.prefix_dir or settings.home / "cache"


def stop_engine(engine: EngineThread, disks: DiskCache | Reason, timeout_s: float = STOP_S) -> None:
    """Stop the engine after queueing prefixes for disk, and wait for the disk.

    Returns after about `timeout_s`, even if a thread hangs.
    """
    until = time.monotonic() + timeout_s

    def left() -> float:
        return max(0.0, until - time.monotonic())

    if isinstance(disks, DiskCache):
        with suppress(EngineDead, TimeoutError):
            engine.call(disks.close).result(left())
    engine.stop(left() if engine.failure is None else min(left(), _DEAD_S))
    if isinstance(disks, DiskCache):
        disks.join(left())


@dataclass(frozen=True, slots=True)
class ModelDisks:
    """Fingerprint and layout of target and draft, by role; `cache` stores their prefixes.

    A Reason in place of `cache` explains why nothing is stored.
    """

    cache: DiskCache | Reason | None
    keys: Mapping[str, tuple[Fingerprint, Layout]]

    @contextmanager
    def opened(self, block_tokens: int) -> Iterator[tuple[Disk, Disk]]:
        """Yield the tiers for target and draft, closed if the block raises. Engine thread only."""
        disks: dict[str, Disk] = {}
        with ExitStack() as failed:
            for role in (TARGET, DRAFT):
                disks[role] = self.cache if isinstance(self.cache, Reason) else None
                if isinstance(self.cache, DiskCache) and role in self.keys:
                    disks[role] = tier = self.cache.open(*self.keys[role], block_tokens)
                    failed.callback(tier.close)
            yield disks[TARGET], disks[DRAFT]
            failed.pop_all()


def model_disks(
    cache: DiskCache | Reason | None,
    choice: DraftChoice,
    target: LoadedModel,
    draft: LoadedModel | None,
) -> ModelDisks:
    """Read the fingerprints of target and draft. Thread-safe."""
    if not isinstance(cache, DiskCache):
        return ModelDisks(cache, {})
    if target.stage is not None:
        return ModelDisks(Reason("prefix.disk.off.stages"), {})
    if choice.speculation.settings.exactness == STRICT:
        return ModelDisks(Reason("prefix.disk.off.strict"), {})
    dtype = choice.speculation.settings.dtype
    keys = {}
    try:
        roles = ((TARGET, choice.target, target), (DRAFT, choice.draft_model, draft))
        for role, entry, model in roles:
            if entry is not None and model is not None:
                facts = model.facts
                kept = dtype if facts.kv_bits is None else f"{dtype} kv_bits={facts.kv_bits}"
                own = prefix_fingerprint(entry, role, kept, facts.layout, choice.target)
                keys[role] = (own, facts.layout)
    except OSError as error:
        return ModelDisks(Reason("prefix.disk.off.failed", {"detail": str(error)}), {})
    return ModelDisks(cache, keys)


def prefix_fingerprint(
    entry: ModelEntry, role: str, dtype: str, layout: Layout, target: ModelEntry | None = None
) -> Fingerprint:
    """Return the fingerprint of a model's prefixes: files with times, libraries, cache layout.

    `role` is TARGET or DRAFT. Prefixes belong to prompts of `target` (None: the model itself), and
    are deleted with those. Raises OSError, ModelError.
    """
    facts = {"dtype": dtype, "layout": repr(layout), "format": str(FORMAT)}
    tokenizers = (file.name for file in entry.path.glob("tokenizer*"))
    for name, content in fingerprint(entry.path).items():
        facts[name] = f"{content} {file_stamp(entry.path / name)}"
    for name in sorted(tokenizers):
        facts[name] = str(file_stamp(entry.path / name))
    facts |= versions()
    if target is None or target.id == entry.id:
        return Fingerprint(entry.id, role, facts)
    return Fingerprint(target.id, f"{role} {entry.id}", facts)
