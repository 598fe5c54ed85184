"""What pages load: style sheets and modules from `static/`, and the catalogs, from which modules take their words."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from omlx.catalog import data_dir

from .headers import SecurityHeaders
from .rendering import STATIC

LOCALES: Final = f"{STATIC}/locales"


def serve_files(app: FastAPI) -> None:
    """Open to everybody: there is nothing in them that a wheel does not tell."""
    app.add_middleware(SecurityHeaders, files=STATIC)
    app.mount(LOCALES, StaticFiles(directory=data_dir("locales")), name="locales")
    app.mount(STATIC, StaticFiles(directory=data_dir("static")), name="static")
