"""The page that says how programs are connected, and which ones have been heard of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Final

from fastapi import Request

from omlx.catalog import sentence
from omlx.clients.endpoint import Endpoint
from omlx.server.api_keys import ApiKeys
from omlx.server.last_seen import LastSeen
from omlx.server.model_cards import ModelCard, ModelCards

from ..addresses import CONNECT, PARTS
from ..models.model_snapshot import ModelSnapshots
from ..pages import Page, Pages
from ..preferences import language_of
from .programs import GroupView, ProgramView, group_views, other_programs

_PLACEHOLDER: Final = "org/model"


@dataclass(frozen=True, slots=True)
class AppsView:
    """`context_length`: the model's, in tokens; `no_tools`: it cannot call functions. `others` are
    programs that no group has."""

    groups: Sequence[GroupView]
    others: Sequence[ProgramView]
    context_length: int | None
    no_tools: bool


@dataclass(frozen=True, slots=True)
class ConnectView:
    """`address` is the server's in the browser, `model` the one of `models` in the snippets."""

    address: str
    models: Sequence[str]
    model: str
    with_key: bool
    apps: AppsView


@dataclass(frozen=True, slots=True)
class ConnectPage:
    snapshots: ModelSnapshots
    cards: ModelCards
    keys: ApiKeys
    seen: LastSeen

    def register(self, pages: Pages) -> None:
        pages.route(CONNECT, self.show)
        pages.part(f"{PARTS}/connect", self.show_apps)

    async def show(self, request: Request) -> Page:
        return Page("connect/page.html", await self._view(request), "connect")

    async def show_apps(self, request: Request) -> Page:
        return Page("connect/apps.html", (await self._view(request)).apps)

    async def _view(self, request: Request) -> ConnectView:
        address, with_key = str(request.base_url).rstrip("/"), self.keys.required
        models = self.snapshots.pool.catalog.ids
        card = await self._card(request.query_params.get("model"), models)
        endpoint = Endpoint(address, _PLACEHOLDER, None, with_key)
        if card is not None:
            endpoint = Endpoint(address, card.id, card.context_length, with_key)
        question = sentence("cli.serve.prompt", {}, language_of(request))
        programs, now = self.seen.programs, time()
        apps = AppsView(
            groups=group_views(endpoint, question, programs, now),
            others=other_programs(programs, now),
            context_length=endpoint.context_length,
            no_tools=card is not None and not card.tools,
        )
        return ConnectView(address, models, endpoint.model, with_key, apps)

    async def _card(self, chosen: str | None, models: Sequence[str]) -> ModelCard | None:
        """The card of the first that is usable: the chosen model, the one to begin with."""
        usable = (model for model in (chosen, self.snapshots.first) if model in models)
        model = next(usable, None)
        return None if model is None else await self.cards.one(model)
