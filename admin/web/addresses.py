"""Addresses of the dashboard's pages, page parts, API and static files."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

HOME: Final = "/admin"
ACTIVITY: Final = f"{HOME}/activity"
LOG: Final = f"{ACTIVITY}/log"
STATISTICS: Final = f"{ACTIVITY}/statistics"
API: Final = f"{HOME}/api"
BENCHMARK: Final = f"{HOME}/benchmark"
CHAT: Final = f"{HOME}/chat"
CONNECT: Final = f"{HOME}/connect"
LOGIN: Final = f"{HOME}/login"
MODELS: Final = f"{HOME}/models"
DOWNLOAD: Final = f"{MODELS}/get"
PROFILES: Final = f"{HOME}/profiles"
SETTINGS: Final = f"{HOME}/settings"
KEYS: Final = f"{SETTINGS}/keys"
PARTS: Final = f"{HOME}/parts"
"""Prefix of page parts, which scripts fetch repeatedly for the current state."""

STATIC: Final = f"{HOME}/static"


def model_path(model: str) -> str:
    """Return the URL path of a model's page, with the id's slashes kept."""
    return f"{MODELS}/{quote(model, safe='/')}"


def profile_path(model: str, profile: str) -> str:
    return f"{PROFILES}/{quote(model, safe='/')}?{urlencode({'profile': profile})}"


def own_page(address: str | None) -> str:
    """Return `address` if within the dashboard, else `HOME`."""
    if address is not None and address.startswith((f"{HOME}/", f"{HOME}?")):
        return address
    return HOME
