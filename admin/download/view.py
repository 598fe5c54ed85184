"""What the download page shows: results, downloads, models that can be deleted. Plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.places import HUB_CACHE
from omlx.models.hub.downloads import Download, State
from omlx.models.hub.fit import Fit
from omlx.models.hub.offer import Offer
from omlx.models.pool.resident import State as Residency

from ..models.model_snapshot import ModelSnapshot

ACTIVE = (State.WAITING, State.RUNNING)


@dataclass(frozen=True, slots=True)
class OfferRow:
    """`here`: on this machine; `download`: the state of its download, if there is one.

    `has_room`: the disk has the space that it needs.
    """

    offer: Offer
    fit: Fit
    here: bool = False
    download: State | None = None
    has_room: bool = True

    @property
    def id(self) -> str:
        return self.offer.repository


@dataclass(frozen=True, slots=True)
class DownloadRow:
    """`share` of the bytes, None until the hub has answered. `checking`: all of them are here."""

    download: Download
    share: float | None
    checking: bool

    @property
    def id(self) -> str:
        return self.download.repository

    @property
    def active(self) -> bool:
        return self.download.state in ACTIVE


@dataclass(frozen=True, slots=True)
class OwnRow:
    """A model in the hub's cache. `drafts_for`: models that use it as draft."""

    entry: ModelEntry
    in_memory: bool
    drafts_for: Sequence[str]

    @property
    def id(self) -> str:
        return self.entry.id


@dataclass(frozen=True, slots=True)
class ResultsView:
    """`text` is what was searched for, None for the suggestions without a search."""

    text: str | None
    rows: Sequence[OfferRow]
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class QueueView:
    rows: Sequence[DownloadRow]


@dataclass(frozen=True, slots=True)
class OwnView:
    rows: Sequence[OwnRow]
    cache: str
    free_bytes: int


def results_view(
    text: str | None,
    offers: Iterable[Offer],
    here: Collection[str],
    downloads: Sequence[Download],
    room: tuple[int, int],
) -> ResultsView:
    """`here` are ids of usable models; `room` the memory limit and the free bytes of the disk."""
    limit_bytes, free_bytes = room
    states = {download.repository: download.state for download in downloads}
    rows = [
        OfferRow(
            offer,
            offer.fit(limit_bytes),
            offer.repository in here,
            states.get(offer.repository),
            offer.download_bytes < free_bytes,
        )
        for offer in offers
    ]
    return ResultsView(text, rows, limit_bytes)


def queue_view(downloads: Iterable[Download]) -> QueueView:
    return QueueView([_download_row(download) for download in downloads])


def own_view(
    snapshots: Sequence[ModelSnapshot],
    downloads: Sequence[Download],
    cache: str,
    free_bytes: int,
) -> OwnView:
    """Return the models of the hub's cache, complete or not, without those in the queue."""
    queued = {download.repository for download in downloads if download.state is not State.DONE}
    users = _users(snapshots)
    rows = [
        OwnRow(
            snapshot.entry,
            snapshot.status.state is not Residency.UNLOADED,
            users.get(snapshot.entry.id, ()),
        )
        for snapshot in snapshots
        if snapshot.entry.source == HUB_CACHE and snapshot.entry.id not in queued
    ]
    return OwnView(rows, cache, free_bytes)


def _download_row(download: Download) -> DownloadRow:
    if not download.total_bytes:
        return DownloadRow(download, None, checking=False)
    complete = download.done_bytes >= download.total_bytes
    checking = complete and download.state is State.RUNNING
    return DownloadRow(download, download.done_bytes / download.total_bytes, checking)


def _users(snapshots: Iterable[ModelSnapshot]) -> Mapping[str, Sequence[str]]:
    """Return the models that use each draft, by its id."""
    users: dict[str, list[str]] = {}
    for snapshot in snapshots:
        draft = None if snapshot.speculative is None else snapshot.speculative.draft
        if draft is not None:
            users.setdefault(draft.id, []).append(snapshot.entry.id)
    return users
