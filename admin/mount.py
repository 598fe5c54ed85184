"""Puts the dashboard into the server's application."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException

from omlx.server.services import Services
from omlx.settings.configuration import LiveConfiguration

from . import preferences
from .files import serve_files
from .login.credentials import Credentials
from .login.page import LoginPage
from .login.routes import Gate
from .login.sessions import Sessions, Throttle
from .models.model_page import ModelPage
from .models.model_snapshot import Standings
from .models.page import ModelsPage
from .models.routes import ModelsRoutes
from .overview.live import LiveData, LiveRoutes
from .overview.page import OverviewPage
from .pages import Pages
from .settings.applying import Applying
from .settings.page import SettingsPage
from .settings.routes import SettingsRoutes
from .trial.routes import TrialRoutes
from .trial.trial_service import Trying
from .trial.try_part import TryPart


def mount(app: FastAPI, services: Services, configuration: LiveConfiguration, home: Path) -> None:
    """`configuration` has a store. A changed API key counts from the next request on."""
    pool, key = services.pool, services.api_key
    credentials = Credentials(home)
    gate = Gate(credentials, Sessions(), Throttle(), lambda: key.value)

    def rekeyed(value: str | None) -> None:
        key.value = value

    pages, standings = Pages(gate), Standings(services)
    live = LiveData(services)
    settings = SettingsRoutes(gate, pool, configuration, rekeyed)
    trying = Trying(services, Applying(pool, configuration), home)
    routers: list[APIRouter] = [
        gate.routes(),
        settings.routes(),
        ModelsRoutes(gate, pool, services.prefixes).routes(),
        TrialRoutes(gate, trying).routes(),
        preferences.routes(),
        LoginPage(pages, gate, credentials).routes(),
        LiveRoutes(gate, live).routes(),
        OverviewPage(pages, live, standings, key).routes(),
        ModelsPage(pages, standings).routes(),
        ModelPage(pages, standings, settings, trying).routes(),
        TryPart(pages, trying).routes(),
        SettingsPage(pages, settings, pool).routes(),
    ]
    for router in routers:
        app.include_router(router)
    serve_files(app)
    app.add_exception_handler(HTTPException, pages.misrouted)
