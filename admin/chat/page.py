"""The chat page. Conversations are in the browser; the server renders the page around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from omlx.catalog import data_dir

from ..addresses import CHAT
from ..models.model_snapshot import ModelSnapshots
from ..pages import Page, Pages


@dataclass(frozen=True, slots=True)
class ChatView:
    """`model` is the one of `models` that is chosen first, None if there is none.

    `has_own`: there is a model that does not come with this package. `has_markdown`: the libraries
    that render answers are installed.
    """

    models: Sequence[str]
    model: str | None
    has_own: bool
    has_markdown: bool


@dataclass(frozen=True, slots=True)
class ChatPage:
    snapshots: ModelSnapshots

    def register(self, pages: Pages) -> None:
        pages.route(CHAT, self.show)

    async def show(self, request: Request) -> Page:
        pool = self.snapshots.pool
        models = pool.catalog.ids
        wanted = (request.query_params.get("model"), self.snapshots.first, *models)
        view = ChatView(
            models=models,
            model=next((name for name in wanted if name in models), None),
            has_own=bool(pool.registry.own),
            has_markdown=(data_dir("static") / "vendor" / "marked").is_dir(),
        )
        return Page("chat/page.html", view, "chat")
