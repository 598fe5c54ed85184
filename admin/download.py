"""The page that downloads models: suggestions, a search of the hub, downloads, deletion.

It asks the hub only when a person searches or downloads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Conflict, ModelError, NotFound
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.places import HUB_CACHE
from omlx.models.catalog.reference import Reference
from omlx.models.gguf.package import MODEL as PACKAGED
from omlx.models.hub.downloads import Download, Downloads, State
from omlx.models.hub.fit import Fit
from omlx.models.hub.offer import Offer
from omlx.models.hub.suggestions import starters
from omlx.models.hub.with_draft import remember_draft
from omlx.models.pool.pool import Pool
from omlx.models.pool.resident import State as Residency
from omlx.server.connection import while_connected
from omlx.server.fields import read
from omlx.settings.configuration import LiveConfiguration

from .models.list_page import SECTION
from .models.model_snapshot import ModelSnapshot, ModelSnapshots
from .web.addresses import DOWNLOAD, PARTS
from .web.pages import Page, Pages

SUGGESTED = 5


@dataclass(frozen=True, slots=True)
class DownloadView:
    results: ResultsView
    queue: QueueView
    own: OwnView


@dataclass(frozen=True, slots=True)
class DownloadPage:
    downloads: Downloads
    snapshots: ModelSnapshots
    shelf: Shelf

    def register(self, pages: Pages) -> None:
        pages.route(DOWNLOAD, self.show)
        pages.part(f"{PARTS}/downloads", self.show_queue)
        pages.part(f"{PARTS}/downloads/results", self.show_results)
        pages.part(f"{PARTS}/downloads/own", self.show_own)

    async def show(self, request: Request) -> Page:
        downloads = await self.downloads.all()
        view = DownloadView(
            await self.results(None, downloads), queue_view(downloads), await self._own(downloads)
        )
        return Page("download/page.html", view, SECTION)

    async def show_queue(self, request: Request) -> Page:
        return Page("download/queue.html", queue_view(await self.downloads.all()))

    async def show_results(self, request: Request) -> Page:
        text = request.query_params.get("q")
        return Page("download/results.html", await self.results(text, await self.downloads.all()))

    async def show_own(self, request: Request) -> Page:
        return Page("download/own.html", await self._own(await self.downloads.all()))

    async def results(self, text: str | None, downloads: list[Download]) -> ResultsView:
        """Return the results of an earlier search, else suggestions for this machine."""
        pool = self.snapshots.pool
        offers = None if text is None else self.shelf.get(text)
        if offers is None:
            text, offers = None, starters(pool.limit_bytes, SUGGESTED)
        here = {entry.id for entry in pool.models}
        free = await asyncio.to_thread(self.downloads.free_bytes)
        return results_view(text, offers, here, downloads, (pool.limit_bytes, free))

    async def _own(self, downloads: list[Download]) -> OwnView:
        snapshots = await self.snapshots.all()
        free = await asyncio.to_thread(self.downloads.free_bytes)
        return own_view(snapshots, downloads, str(self.downloads.cache), free >> 20 << 20)


Name = Annotated[str, Field(min_length=1, max_length=400)]


class Search(BaseModel):
    """Body of a search."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Name


class Wanted(BaseModel):
    """Body of a download: references. `declared`: the model's package names the draft itself."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name
    draft: Name | None = None
    declared: bool = False


@dataclass(frozen=True, slots=True)
class DownloadsApi:
    downloads: Downloads
    pool: Pool
    configuration: LiveConfiguration
    shelf: Shelf

    def register(self, router: APIRouter) -> None:
        one = "/downloads/{name:path}"
        router.add_api_route("/downloads/search", self.search, methods=["POST"])
        router.add_api_route("/downloads", self.start, methods=["POST"])
        router.add_api_route(f"{one}/pause", self.pause, methods=["POST"])
        router.add_api_route(f"{one}/resume", self.resume, methods=["POST"])
        router.add_api_route(one, self.discard, methods=["DELETE"])
        router.add_api_route("/models/{name:path}", self.delete, methods=["DELETE"])

    async def search(self, request: Request) -> Response:
        text = read(Search, await request.body()).text.strip()
        offers = await while_connected(request.receive, self.downloads.search(text))
        self.shelf.put(text, offers)
        return JSONResponse({"text": text, "count": len(offers)})

    async def start(self, request: Request) -> Response:
        """Begin; the draft is stored as the model's, unless its package declares it."""
        wanted = read(Wanted, await request.body())
        references = [_reference(name) for name in (wanted.model, wanted.draft) if name]
        if len(references) > 1 and not wanted.declared:
            model, draft = references
            await asyncio.to_thread(
                remember_draft, self.configuration, model.repository, str(draft)
            )
        for reference in references:
            self.downloads.start(reference)
        return JSONResponse({"models": [str(reference) for reference in references]}, 202)

    async def pause(self, request: Request, name: str) -> Response:
        await self.downloads.pause(name)
        return Response(status_code=204)

    async def resume(self, request: Request, name: str) -> Response:
        await self.downloads.resume(name)
        return Response(status_code=204)

    async def discard(self, request: Request, name: str) -> Response:
        await self.downloads.discard(_reference(name).repository)
        return Response(status_code=204)

    async def delete(self, request: Request, name: str) -> Response:
        """Raises NotFound for a model of another folder, Conflict for one that is in memory."""
        entries = [entry for entry in self.pool.registry.entries if entry.source == HUB_CACHE]
        entry = next((entry for entry in entries if entry.id == name), None)
        if entry is None:
            raise NotFound("pull.not_in_cache", repository=name)
        if entry.usable and self.pool.status(name).state is not Residency.UNLOADED:
            raise Conflict("pull.in_memory", repository=name)
        await self.downloads.delete(name)
        return Response(status_code=204)


def _reference(name: str) -> Reference:
    """Raises BadRequest for a text of another form."""
    try:
        reference = Reference.parse(name)
    except ModelError as error:
        raise BadRequest(error.code, param=None, **error.params) from None
    if not reference.on_hub and name != PACKAGED:
        raise BadRequest("draft.malformed", draft=name)
    return reference


MAX_SEARCHES: Final = 16


class Shelf:
    """The newest searches, by their text."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Sequence[Offer]] = OrderedDict()

    def put(self, text: str, offers: Sequence[Offer]) -> None:
        self._found.pop(text, None)
        self._found[text] = offers
        if len(self._found) > MAX_SEARCHES:
            self._found.popitem(last=False)

    def get(self, text: str) -> Sequence[Offer] | None:
        """Return the results; None for a search that was not made, or too long ago."""
        return self._found.get(text)


@dataclass(frozen=True, slots=True)
class FirstView:
    """`offers` is None where there is a model, or where none fits. `queue`: what is downloaded."""

    offers: ResultsView | None
    queue: QueueView


async def first_view(downloads: Downloads, pool: Pool) -> FirstView:
    """Describe the offers, and the downloads of this machine."""
    queue, limit_bytes = await downloads.all(), pool.limit_bytes
    offers = [] if pool.registry.own else starters(limit_bytes)
    if not offers:
        return FirstView(None, queue_view(queue))
    room = limit_bytes, await asyncio.to_thread(downloads.free_bytes)
    return FirstView(results_view(None, offers, (), queue, room), queue_view(queue))


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
