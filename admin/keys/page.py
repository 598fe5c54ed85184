"""The page of named API keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from omlx.errors import Reason
from omlx.server.api_keys import ApiKeys
from omlx.settings.keys import NamedKey

from ..addresses import KEYS, PARTS
from ..pages import Page, Pages


@dataclass(frozen=True, slots=True)
class KeyRow:
    """`models` is empty for a key without restriction, `rate` in requests per minute."""

    name: str
    ending: str
    models: Sequence[str]
    rate: int | None
    created: str


@dataclass(frozen=True, slots=True)
class KeysView:
    """`problem` says why the file does not count. `required`: requests need a key; `has_main`: the
    settings have one."""

    rows: Sequence[KeyRow]
    problem: Reason | None
    required: bool
    has_main: bool


@dataclass(frozen=True, slots=True)
class KeysPage:
    keys: ApiKeys

    def register(self, pages: Pages) -> None:
        pages.route(KEYS, self.show)
        pages.part(f"{PARTS}/keys", self.show_list)

    async def show(self, request: Request) -> Page:
        return Page("keys/page.html", keys_view(self.keys), "settings")

    async def show_list(self, request: Request) -> Page:
        return Page("keys/list.html", keys_view(self.keys))


def keys_view(keys: ApiKeys) -> KeysView:
    required, problem = keys.required, None
    if keys.problem is not None:
        problem = Reason(keys.problem.code, keys.problem.params)
    rows = tuple(map(_row, keys.named))
    return KeysView(rows, problem, required, keys.main is not None)


def _row(key: NamedKey) -> KeyRow:
    models = () if key.may_use_all else key.models
    day = key.created.date().isoformat()
    return KeyRow(key.name, key.ending, models, key.requests_per_minute, day)
