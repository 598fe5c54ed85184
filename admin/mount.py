"""Puts the dashboard's back end into the server's application."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from omlx.models.pool import Pool
from omlx.server.guard import ApiKey
from omlx.settings.configuration import Configuration
from omlx.settings.resolve import Resolution

from .credentials import Credentials
from .login import Gate
from .models_routes import ModelsRoutes
from .sessions import Sessions, Throttle
from .settings_routes import SettingsRoutes


def mount(app: FastAPI, pool: Pool, configuration: Configuration, home: Path) -> None:
    """`configuration` has a store. A changed API key counts from the next request on."""
    key: ApiKey = app.state.api_key
    gate = Gate(Credentials(home), Sessions(), Throttle(), lambda: key.value)

    def changed(resolution: Resolution) -> None:
        key.value = resolution.settings.api_key

    for part in (gate, SettingsRoutes(gate, pool, configuration, changed), ModelsRoutes(gate, pool)):
        app.include_router(part.routes())
