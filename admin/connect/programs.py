"""Programs with their snippets and the time of their last request, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx.clients.apps import APPS, App, Kind
from omlx.clients.endpoint import Endpoint
from omlx.clients.snippets import Snippet
from omlx.server.last_seen import Seen

_STEP_S, _MINUTE_S = 5, 60


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A program that sent a request `age_s` seconds ago, rounded so that a page changes seldom.

    `version` is empty where the request does not say.
    """

    name: str
    version: str
    age_s: int
    refused: bool


@dataclass(frozen=True, slots=True)
class AppView:
    """`launch` is the command that starts it; `search` is what a search looks in. `known`: its
    requests are recognized. `least_context`: tokens that it needs, where the model has fewer."""

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
    endpoint: Endpoint, question: str, programs: Sequence[Seen], now: float
) -> Sequence[GroupView]:
    """`programs` have sent requests, the newest first."""
    return [
        GroupView(kind, [_view(app, endpoint, question, programs, now) for app in _of(kind)])
        for kind in Kind
    ]


def other_programs(programs: Iterable[Seen], now: float) -> Sequence[ProgramView]:
    """Return the programs that are none of the apps."""
    unknown = [seen for seen in programs if not any(app.sends(seen.client) for app in APPS)]
    return [_program_view(seen, now) for seen in unknown]


def _of(kind: Kind) -> Iterable[App]:
    return (app for app in APPS if app.kind is kind)


def _view(
    app: App, endpoint: Endpoint, question: str, programs: Sequence[Seen], now: float
) -> AppView:
    snippet, launch = app.snippet(endpoint, question), app.launch(endpoint)
    newest = next((seen for seen in programs if app.sends(seen.client)), None)
    texts = (app.name, snippet.file, app.program)
    return AppView(
        app.id,
        app.name,
        snippet,
        launch,
        app.least_context(endpoint),
        bool(app.agents),
        None if newest is None else _program_view(newest, now),
        " ".join(filter(None, texts)).lower(),
    )


def _program_view(seen: Seen, now: float) -> ProgramView:
    name, _, version = seen.client.partition("/")
    if not version[:1].isdigit():
        name, version = seen.client, ""
    return ProgramView(name, version, _rounded(max(0.0, now - seen.at)), seen.refused)


def _rounded(seconds: float) -> int:
    step = _STEP_S if seconds < _MINUTE_S else _MINUTE_S
    return int(seconds) // step * step
