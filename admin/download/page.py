"""The page that downloads models: suggestions, a search of the hub, downloads, deletion.

It asks the hub only when a person searches or downloads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import Request

from omlx.models.hub.downloads import Download, Downloads
from omlx.models.hub.suggestions import starters

from ..addresses import DOWNLOAD, PARTS
from ..models.list_page import SECTION
from ..models.model_snapshot import ModelSnapshots
from ..pages import Page, Pages
from .shelf import Shelf
from .view import OwnView, QueueView, ResultsView, own_view, queue_view, results_view

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
