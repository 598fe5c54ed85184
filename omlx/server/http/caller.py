"""Who sent a request, when, and what of its text may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from omlx.server.http.guard import is_dashboard
from omlx.server.http.keys import key_of

DASHBOARD: Final = "dashboard"
"""Client, and name of the key, of requests from the dashboard's own pages."""

_SHOWN: Final = 120
"""Characters of a User-Agent that are kept."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`client` is the program as its User-Agent names it, `key` the name of its API key; empty if
    the request has none."""

    client: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose body arrived `at` seconds on a monotonic clock. `prompt_text` is the end of
    its prompt, where a setting allows to keep it."""

    at: float
    caller: Caller = field(default_factory=Caller)
    prompt_text: str | None = None


def caller_of(scope: Scope) -> Caller:
    if is_dashboard(scope["path"]):
        return Caller(DASHBOARD, DASHBOARD)
    return Caller(Headers(scope=scope).get("user-agent", "")[:_SHOWN], key_of(scope))
