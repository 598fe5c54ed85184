"""Connecting programs: snippets, connected clients with their last request, named API keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time
from typing import Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.catalog import data_dir, sentence
from omlx.clients.agents import Endpoint, network_urls
from omlx.clients.apps import APPS, App, Kind, Snippet, client_name
from omlx.errors import Reason
from omlx.machine import PROGRAM, program_words
from omlx.models.catalog.catalog import Catalog
from omlx.server.endpoints.models import ModelCard, ModelCards
from omlx.server.http.guard import ApiKeys, is_loopback
from omlx.server.request.activity import LastSeen, Seen
from omlx.settings.keys import EVERY_MODEL, KeyFile, NamedKey

from .models.model_snapshot import ModelSnapshots
from .web.addresses import CONNECT, HOME, KEYS, PARTS
from .web.pages import Pages, page
from .web.preferences import Strict, language_of

_PLACEHOLDER: Final = "org/model"
_STEP_S, _MINUTE_S = 5, 60


@dataclass(frozen=True, slots=True)
class AppsView:
    """`context_length`: of the model, in tokens; `no_tools`: the model cannot call functions.

    `others`: programs outside all groups.
    """

    groups: Mapping[Kind, Sequence[AppView]]
    others: Sequence[ProgramView]
    context_length: int | None
    no_tools: bool


@dataclass(frozen=True, slots=True)
class ConnectView:
    """`address`: of the server, as the browser reached it; `model`: shown in the snippets.

    `network`: dashboard's address for other machines; None if the server accepts none of them.
    `has_qr`: the library that draws QR codes is installed.
    """

    address: str
    models: Sequence[str]
    model: str
    with_key: bool
    apps: AppsView
    network: str | None
    has_qr: bool


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
        # The path of the program is for a browser on this machine alone.
        near = request.client is not None and is_loopback(request.client.host)
        omlx = program_words() if near else [PROGRAM]
        programs, now = self.seen.programs, time()
        apps = AppsView(
            groups=group_views(endpoint, question, programs, now, omlx),
            others=other_programs(programs, now),
            context_length=endpoint.context_length,
            no_tools=card is not None and not card.tools,
        )
        host = self.snapshots.pool.catalog.configuration.resolve().settings.host
        network = None if is_loopback(host) else f"{network_urls(address)[0]}{HOME}"
        return ConnectView(
            address,
            models,
            endpoint.model,
            with_key,
            apps,
            network=network,
            has_qr=(data_dir("static") / "vendor" / "uqr").is_dir(),
        )

    async def _card(self, chosen: str | None, models: Sequence[str]) -> ModelCard | None:
        """Return the card of the chosen model if usable, else of the initial model."""
        usable = (model for model in (chosen, self.snapshots.first) if model in models)
        model = next(usable, None)
        return None if model is None else await self.cards.one(model)


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


def group_views(
    endpoint: Endpoint,
    question: str,
    programs: Sequence[Seen],
    now: float,
    omlx: Sequence[str] = (PROGRAM,),
) -> dict[Kind, list[AppView]]:
    """Return the apps in groups; `programs` newest first, `omlx` starts this program."""

    def view(app: App) -> AppView:
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

    return {kind: [view(app) for app in APPS if app.kind is kind] for kind in Kind}


def other_programs(programs: Iterable[Seen], now: float) -> Sequence[ProgramView]:
    """Return the programs that belong to no app."""
    unknown = (seen for seen in programs if not any(app.sends(seen.client) for app in APPS))
    return [_program_view(seen, now) for seen in unknown]


def _program_view(seen: Seen, now: float) -> ProgramView:
    name, _, version = seen.client.partition("/")
    if not version[:1].isdigit():
        name, version = seen.client, ""
    seconds = max(0.0, now - seen.at)
    step = _STEP_S if seconds < _MINUTE_S else _MINUTE_S
    return ProgramView(name, version, int(seconds) // step * step, seen.refused)


@dataclass(frozen=True, slots=True)
class KeysView:
    """`problem`: why the file is ignored.

    `required`: requests need a key. `has_main`: the settings hold a key. `keyless`: programs that
    sent requests without one.
    """

    rows: Sequence[NamedKey]
    problem: Reason | None
    required: bool
    has_main: bool
    keyless: Sequence[str] = ()


class NewKey(Strict):
    """Body of a new key; `models` are patterns."""

    name: str
    models: list[str] = Field(default_factory=lambda: [EVERY_MODEL], max_length=1000)
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class KeysPage:
    """Named keys: the page, and `/admin/api/keys`. Only the answer to a creation holds the key."""

    keys: ApiKeys
    file: KeyFile
    catalog: Catalog
    seen: LastSeen

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(KEYS, page("keys/page.html", self._whole, "settings"))
        pages.part(f"{PARTS}/keys", page("keys/list.html", self._view))
        api.add_api_route("/keys", self.show, methods=["GET"])
        api.add_api_route("/keys", self.create, methods=["POST"])
        api.add_api_route("/keys/{name}", self.revoke, methods=["DELETE"])

    async def _whole(self, request: Request) -> KeysView:
        view = keys_view(self.keys)
        programs = {client_name(seen.client): None for seen in self.seen.programs}
        return view if view.required else replace(view, keyless=list(programs))

    async def _view(self, request: Request) -> KeysView:
        return keys_view(self.keys)

    async def show(self, request: Request) -> Response:
        keys = await asyncio.to_thread(self.file.read)
        return JSONResponse({"keys": [key.record() for key in keys]})

    async def create(self, request: Request) -> Response:
        """Create a key. `unmatched` in the answer: patterns without a model on this machine."""
        new = NewKey.parse(await request.body())
        key = await asyncio.to_thread(self.file.add, new.name, new.models, new.requests_per_minute)
        unmatched = self.catalog.unmatched(new.models)
        return JSONResponse({"name": new.name, "key": key, "unmatched": unmatched}, 201)

    async def revoke(self, request: Request, name: str) -> Response:
        await asyncio.to_thread(self.file.revoke, name)
        return Response(status_code=204)


def keys_view(keys: ApiKeys) -> KeysView:
    required, problem = keys.required, None
    if keys.problem is not None:
        problem = keys.problem.reason
    return KeysView(tuple(keys.named), problem, required, keys.main is not None)
