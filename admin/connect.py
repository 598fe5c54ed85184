"""Connecting programs: snippets, and connected clients with their last request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import time
from typing import Final

from fastapi import Request

from omlx.catalog import sentence
from omlx.clients.agents import Endpoint
from omlx.clients.apps import APPS, App, Kind, Snippet
from omlx.installation import PROGRAM, program_words
from omlx.server.endpoints.model_cards import ModelCard, ModelCards
from omlx.server.http.guard import ApiKeys, is_loopback
from omlx.server.request.last_seen import LastSeen, Seen

from .models.model_snapshot import ModelSnapshots
from .web.addresses import CONNECT, PARTS
from .web.pages import Pages, page
from .web.preferences import language_of

_PLACEHOLDER: Final = "org/model"
_STEP_S, _MINUTE_S = 5, 60


@dataclass(frozen=True, slots=True)
class AppsView:
    """`context_length`: of the model, in tokens; `no_tools`: the model cannot call functions.

    `others`: programs outside all groups.
    """

    groups: Sequence[GroupView]
    others: Sequence[ProgramView]
    context_length: int | None
    no_tools: bool


@dataclass(frozen=True, slots=True)
class ConnectView:
    """`address`: of the server, as the browser reached it; `model`: shown in the snippets."""

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
        pages.route(CONNECT, page("connect/page.html", self._view, "connect"))
        pages.part(f"{PARTS}/connect", page("connect/apps.html", self._apps))

    async def _apps(self, request: Request) -> AppsView:
        return (await self._view(request)).apps

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
            groups=group_views(endpoint, question, programs, now, _program(request)),
            others=other_programs(programs, now),
            context_length=endpoint.context_length,
            no_tools=card is not None and not card.tools,
        )
        return ConnectView(address, models, endpoint.model, with_key, apps)

    async def _card(self, chosen: str | None, models: Sequence[str]) -> ModelCard | None:
        """Return the card of the chosen model if usable, else of the initial model."""
        usable = (model for model in (chosen, self.snapshots.first) if model in models)
        model = next(usable, None)
        return None if model is None else await self.cards.one(model)


def _program(request: Request) -> Sequence[str]:
    """Return the beginning of omlx commands; a path only for a browser on this machine."""
    near = request.client is not None and is_loopback(request.client.host)
    return program_words() if near else [PROGRAM]


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A program whose last request was `age_s` seconds ago, rounded to limit page updates.

    `version` is empty if the request has none.
    """

    name: str
    version: str
    age_s: int
    refused: bool


@dataclass(frozen=True, slots=True)
class AppView:
    """`launch`: command that starts the app; `search`: text to search in.

    `known`: the app's requests are recognized. `least_context`: required tokens, if the model has
    fewer.
    """

    id: str
    name: str
    snippet: Snippet
    launch: str | None
    least_context: int | None
    known: bool
    seen: ProgramView | None
    search: str


@dataclass(frozen=True, slots=True)
class GroupView:
    kind: Kind
    apps: Sequence[AppView]


def group_views(
    endpoint: Endpoint,
    question: str,
    programs: Sequence[Seen],
    now: float,
    omlx: Sequence[str] = (PROGRAM,),
) -> Sequence[GroupView]:
    """Return the apps in groups; `programs` newest first, `omlx` starts this program."""
    apps = [(app, _view(app, endpoint, question, programs, now, omlx)) for app in APPS]
    return [GroupView(kind, [view for app, view in apps if app.kind is kind]) for kind in Kind]


def other_programs(programs: Iterable[Seen], now: float) -> Sequence[ProgramView]:
    """Return the programs that belong to no app."""
    unknown = (seen for seen in programs if not any(app.sends(seen.client) for app in APPS))
    return [_program_view(seen, now) for seen in unknown]


def _view(
    app: App,
    endpoint: Endpoint,
    question: str,
    programs: Sequence[Seen],
    now: float,
    omlx: Sequence[str],
) -> AppView:
    snippet = app.snippet(endpoint, question)
    newest = next((seen for seen in programs if app.sends(seen.client)), None)
    return AppView(
        id=app.id,
        name=app.name,
        snippet=snippet,
        launch=app.launch(endpoint, omlx),
        least_context=app.least_context(endpoint),
        known=bool(app.agents),
        seen=None if newest is None else _program_view(newest, now),
        search=" ".join(filter(None, (app.name, snippet.file, app.program))).lower(),
    )


def _program_view(seen: Seen, now: float) -> ProgramView:
    name, _, version = seen.client.partition("/")
    if not version[:1].isdigit():
        name, version = seen.client, ""
    seconds = max(0.0, now - seen.at)
    step = _STEP_S if seconds < _MINUTE_S else _MINUTE_S
    return ProgramView(name, version, int(seconds) // step * step, seen.refused)
