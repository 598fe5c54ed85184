"""Composition of the dashboard into the server's application."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from omlx.server.exactness import ExactnessService
from omlx.server.model_cards import ModelCards
from omlx.server.services import Services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.keys import KeyFile
from omlx.speed.run_store import RunStore
from omlx.trial.exclusive import Exclusive

from .activity import ActivityApi, ActivityPage, LogPage, StatisticsPage
from .benchmark import BenchmarkApi, BenchmarkPage, BenchmarkService
from .chat import ChatApi, ChatPage
from .connect import ConnectPage
from .credentials import Credentials, Sessions, Throttle
from .download import DownloadPage, DownloadsApi, Shelf
from .keys import KeysApi, KeysPage
from .login import Gate, LoginApi, LoginPage
from .models.drafts import ModelDrafts
from .models.list_page import ModelsApi, ModelsPage
from .models.model_page import ModelPage
from .models.model_snapshot import ModelSnapshots
from .models.profile_page import ProfilePage
from .overview import LiveApi, LiveFigures, OverviewPage
from .settings.page import SettingsApi, SettingsPage
from .settings.service import SettingsService
from .trial import TrialApi
from .trial_service import TrialApplier, TrialService
from .web import preferences
from .web.addresses import HOME
from .web.files import serve_files
from .web.pages import Pages


def mount(app: FastAPI, services: Services, configuration: LiveConfiguration, home: Path) -> None:
    """Add the dashboard to `app`. `configuration` has a store."""
    pool, keys = services.pool, services.api_keys

    def publish_key(value: str | None) -> None:
        keys.main = value  # the guard reads it at every request

    gate = Gate(Credentials(home), Sessions(), Throttle(), lambda: keys.main)
    pages = Pages(gate.logged_in)
    snapshots = ModelSnapshots(services)
    figures = LiveFigures(services)
    settings = SettingsService(pool, configuration, publish_key)
    exclusive = Exclusive()
    trials = TrialService(services, TrialApplier(pool, configuration), home, exclusive)
    benchmarks = BenchmarkService(services, home, exclusive)

    ChatPage(snapshots).register(pages)
    cards = ModelCards(pool)
    OverviewPage(figures, snapshots, trials.trials, services.downloads).register(pages)
    ConnectPage(snapshots, cards, keys, services.activity.seen).register(pages)
    shelf = Shelf()
    ModelsPage(snapshots).register(pages)
    DownloadPage(services.downloads, snapshots, shelf).register(pages)
    runs, drafts = RunStore(home), ModelDrafts(pool)
    ModelPage(snapshots, settings, trials, runs, services.prefixes, drafts).register(pages)
    ProfilePage(pool, settings).register(pages)
    BenchmarkPage(benchmarks).register(pages)
    ActivityPage(figures.requests, services.verifier).register(pages)
    LogPage(home).register(pages)
    SettingsPage(settings).register(pages)
    KeysPage(keys).register(pages)
    LoginPage(pages, gate).register()
    pages.form(f"{HOME}/preferences", preferences.store)

    exactness = ExactnessService(pool, services.engine)
    api = gate.router()
    SettingsApi(gate, pool, settings).register(api)
    KeysApi(KeyFile(home), pool.catalog).register(api)
    ModelsApi(pool, services.prefixes, exactness).register(api)
    DownloadsApi(services.downloads, pool, configuration, shelf).register(api)
    TrialApi(gate, trials).register(api)
    BenchmarkApi(benchmarks).register(api)
    LiveApi(figures).register(api)
    ActivityApi(services.generations, services.verifier).register(api)
    StatisticsPage(services.activity.history).register(pages, api)
    ChatApi.of(services).register(api)

    for router in (LoginApi(gate).routes(), api, pages.router):
        app.include_router(router)
    serve_files(app)
    app.add_exception_handler(HTTPException, pages.misrouted)
