"""Composition of the dashboard into the server's application."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException

from omlx.measure.results import ResultStore
from omlx.measure.runner import Measurements, Runner
from omlx.server.app import Application
from omlx.server.endpoints.models import ModelCards
from omlx.server.services import ExactnessService, Services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.keys import KeyFile

from .activity import ActivityPage
from .benchmark import BenchmarkPage
from .chat import FOLDER, ChatPage, ChatStore, ChatStoreEndpoints
from .connect import ConnectPage, KeysPage
from .credentials import Credentials, Sessions, Throttle
from .download import DownloadPage
from .login import Gate, LoginPage
from .models.drafts import ModelDrafts
from .models.list_page import ModelsPage
from .models.model_page import ModelPage
from .models.model_snapshot import ModelSnapshots
from .overview import OverviewPage
from .settings.page import SettingsPage, SettingsService
from .trial import Trials
from .views import Requests
from .web import preferences
from .web.addresses import HOME
from .web.pages import Pages
from .web.rendering import serve_files


def mount(
    app: Application, services: Services, configuration: LiveConfiguration, home: Path
) -> None:
    """Add the dashboard to `app`. Requires a `configuration` with a store."""
    pool, keys = services.pool, services.api_keys

    credentials = Credentials(home)
    gate = Gate(credentials, Sessions(credentials), Throttle(), lambda: keys.main)
    pages = Pages(gate.logged_in)
    snapshots = ModelSnapshots(services)
    settings = SettingsService(pool, configuration, keys)
    runner = Runner(services.engine, pool, services.generations)
    measurements = Measurements(pool, runner, ResultStore(home))
    trials = Trials(gate, services, configuration, measurements)

    api, downloads, prefixes = gate.router(), services.downloads, services.prefixes
    exactness = ExactnessService(pool, services.engine)
    drafts = ModelDrafts(pool)
    requests, cards = Requests(services), ModelCards(pool)
    stored = ChatStoreEndpoints(ChatStore(home / FOLDER), pool)
    SettingsPage(gate, pool, settings).register(pages, api)
    KeysPage(keys, KeyFile(home), pool.catalog, services.activity.seen).register(pages, api)
    ChatPage(services, snapshots, app.responses, cards, stored).register(pages, api)
    OverviewPage(services, requests, snapshots, measurements).register(pages, api)
    ConnectPage(snapshots, cards, keys, services.activity.seen).register(pages)
    # In this order: addresses that end in a model's name come after those with more behind it.
    ModelsPage(snapshots, prefixes, exactness).register(pages, api)
    DownloadPage(downloads, snapshots, configuration).register(pages, api)
    ModelPage(snapshots, settings, trials, prefixes, drafts).register(pages)
    trials.register(api)
    BenchmarkPage(pool, measurements).register(pages, api)
    ActivityPage(services, requests, home).register(pages, api)
    login = LoginPage(pages, gate).register()
    pages.form(f"{HOME}/preferences", preferences.store)

    for router in (login, api, pages.router):
        app.include_router(router)
    serve_files(app)
    app.add_exception_handler(HTTPException, pages.misrouted)
