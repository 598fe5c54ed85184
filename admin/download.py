"""Downloads of models: suggestions, a search of the hub, downloads, deletion.

The hub is contacted only when a person searches or downloads. API, below `/admin/api/downloads`:

    POST   …/search         search the hub; answers with the number of results, which the page shows
    POST   …                download a model and its draft
    POST   …/NAME/pause     stop; keep what has arrived
    POST   …/NAME/resume    continue
    DELETE …/NAME           stop, and delete a partial download; a complete model stays

    DELETE /admin/api/models/NAME   delete a model of the hub's cache
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Conflict, ModelError, NotFound
from omlx.models.catalog.discovery import HUB_CACHE
from omlx.models.catalog.reference import Reference
from omlx.models.catalog.registry import ModelEntry
from omlx.models.hub.converted import MODEL as PACKAGED
from omlx.models.hub.downloads import Download, Downloads, State, remember_draft
from omlx.models.hub.offer import Fit, Offer, starters
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import State as Residency
from omlx.server.http.transport import while_connected
from omlx.settings.configuration import LiveConfiguration

from .models.list_page import SECTION
from .models.model_snapshot import ModelSnapshot, ModelSnapshots
from .web.addresses import DOWNLOAD, PARTS
from .web.pages import Pages, page
from .web.preferences import Strict

SUGGESTED = 5
MAX_SEARCHES: Final = 16
Name = Annotated[str, Field(min_length=1, max_length=400)]


@dataclass(frozen=True, slots=True)
class DownloadView:
    results: ResultsView
    queue: Sequence[Download]
    own: OwnView


class Search(Strict):
    text: Name


class Wanted(Strict):
    """References to download. `declared`: the model's package names the draft."""

    model: Name
    draft: Name | None = None
    declared: bool = False


@dataclass(frozen=True, slots=True)
class DownloadPage:
    """`found`: newest searches by text, so that their rows follow the downloads."""

    downloads: Downloads
    snapshots: ModelSnapshots
    configuration: LiveConfiguration
    found: OrderedDict[str, Sequence[Offer]] = field(default_factory=OrderedDict)

    def register(self, pages: Pages, api: APIRouter) -> None:
        part, one = f"{PARTS}/downloads", "/downloads/{name:path}"
        pages.route(DOWNLOAD, page("download/page.html", self._view, SECTION))
        pages.part(part, page("download/queue.html", self._queue))
        pages.part(f"{part}/results", page("download/results.html", self._results))
        pages.part(f"{part}/own", page("download/own.html", self._own))
        api.add_api_route("/downloads/search", self.search, methods=["POST"])
        api.add_api_route("/downloads", self.start, methods=["POST"])
        api.add_api_route(f"{one}/pause", self.pause, methods=["POST"])
        api.add_api_route(f"{one}/resume", self.resume, methods=["POST"])
        api.add_api_route(one, self.discard, methods=["DELETE"])
        api.add_api_route("/models/{name:path}", self.delete, methods=["DELETE"])

    async def search(self, request: Request) -> Response:
        text = Search.parse(await request.body()).text.strip()
        offers = await while_connected(request.receive, self.downloads.search(text))
        self.found.pop(text, None)
        self.found[text] = offers
        if len(self.found) > MAX_SEARCHES:
            self.found.popitem(last=False)
        return JSONResponse({"text": text, "count": len(offers)})

    async def start(self, request: Request) -> Response:
        """Start downloads; the draft becomes the model's, unless declared by its package."""
        wanted = Wanted.parse(await request.body())
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
        """Delete a cached model. Raises NotFound for other folders, Conflict if in memory."""
        pool = self.snapshots.pool
        entries = [entry for entry in pool.registry.entries if entry.source == HUB_CACHE]
        entry = next((entry for entry in entries if entry.id == name), None)
        if entry is None:
            raise NotFound("pull.not_in_cache", repository=name)
        if entry.usable and pool.status(name).state is not Residency.UNLOADED:
            raise Conflict("pull.in_memory", repository=name)
        await self.downloads.delete(name)
        return Response(status_code=204)

    async def _view(self, request: Request) -> DownloadView:
        downloads = await self.downloads.all()
        results, own = await self._offers(None, downloads), await self._cached(downloads)
        return DownloadView(results, downloads, own)

    async def _queue(self, request: Request) -> Sequence[Download]:
        return await self.downloads.all()

    async def _results(self, request: Request) -> ResultsView:
        return await self._offers(request.query_params.get("q"), await self.downloads.all())

    async def _own(self, request: Request) -> OwnView:
        return await self._cached(await self.downloads.all())

    async def _offers(self, text: str | None, downloads: list[Download]) -> ResultsView:
        """Return the results of an earlier search, else suggestions for this machine."""
        pool = self.snapshots.pool
        offers = None if text is None else self.found.get(text)
        if offers is None:
            text, offers = None, starters(pool.limit_bytes, SUGGESTED)
        here = {entry.id for entry in pool.models}
        free = await asyncio.to_thread(self.downloads.free_bytes)
        return results_view(text, offers, here, downloads, (pool.limit_bytes, free))

    async def _cached(self, downloads: list[Download]) -> OwnView:
        snapshots = await self.snapshots.all()
        free = await asyncio.to_thread(self.downloads.free_bytes)
        # Whole MiB: the part stays equal while small files change.
        return own_view(snapshots, downloads, str(self.downloads.cache), free >> 20 << 20)


def _reference(name: str) -> Reference:
    """Parse a reference. Raises BadRequest for another form, or a local path."""
    try:
        reference = Reference.parse(name)
    except ModelError as error:
        raise BadRequest(error.code, param=None, **error.params) from None
    if not reference.on_hub and name != PACKAGED:
        raise BadRequest("draft.malformed", draft=name)
    return reference


@dataclass(frozen=True, slots=True)
class FirstView:
    """`offers` is None if models exist or none fits. `queue`: this machine's downloads."""

    offers: ResultsView | None
    queue: Sequence[Download]


async def first_view(downloads: Downloads, pool: Pool) -> FirstView:
    """Return the offers for a first model, and the downloads of this machine."""
    queue, limit_bytes = await downloads.all(), pool.limit_bytes
    offers = [] if pool.registry.own else starters(limit_bytes)
    if not offers:
        return FirstView(None, queue)
    room = limit_bytes, await asyncio.to_thread(downloads.free_bytes)
    return FirstView(results_view(None, offers, (), queue, room), queue)


@dataclass(frozen=True, slots=True)
class OfferRow:
    """`here`: on this machine; `download`: state of the download, if any.

    `has_room`: the disk has enough space.
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
    """`text`: the search; None for suggestions."""

    text: str | None
    rows: Sequence[OfferRow]
    limit_bytes: int


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
    """`here`: ids of usable models; `room`: memory limit and free bytes of the disk."""
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


def own_view(
    snapshots: Sequence[ModelSnapshot], downloads: Sequence[Download], cache: str, free_bytes: int
) -> OwnView:
    """Return the models of the hub's cache, complete or not, without those in the queue."""
    queued = {download.repository for download in downloads if download.state is not State.DONE}
    users: dict[str, list[str]] = {}  # the models that use each draft, by its id
    for snapshot in snapshots:
        draft = None if snapshot.speculative is None else snapshot.speculative.draft
        if draft is not None:
            users.setdefault(draft.id, []).append(snapshot.entry.id)
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
