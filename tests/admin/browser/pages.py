"""The list of pages for the checks of every page and for screenshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.server.running import TARGET


@dataclass(frozen=True)
class Listed:
    """`name` is that of its screenshots."""

    name: str
    path: str
    logged_in: bool = True


PAGES: Final = (
    Listed("chat", "/admin/chat"),
    Listed("overview", "/admin"),
    Listed("models", "/admin/models"),
    Listed("download", "/admin/models/get"),
    Listed("model", f"/admin/models/{TARGET}"),
    Listed("profile", f"/admin/profiles/{TARGET}?profile=fast"),
    Listed("benchmark", "/admin/benchmark"),
    Listed("activity", "/admin/activity"),
    Listed("statistics", "/admin/activity/statistics"),
    Listed("log", "/admin/activity/log"),
    Listed("connect", "/admin/connect"),
    Listed("settings", "/admin/settings"),
    Listed("keys", "/admin/settings/keys"),
    Listed("password", "/admin/password"),
    Listed("login", "/admin/login", logged_in=False),
    Listed("not-found", "/admin/models/no/such-model"),
)
