"""Settings: the form for all models, the page of a profile, and the API over both.

A PATCH gives the revision to change (If-Match), so concurrent changes do not overwrite each other.
Changes are stored entirely or not at all. Malformed values are refused; references to something
missing are stored with a warning. The query parameter `profile` selects a profile of the model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, RedirectResponse, Response

from omlx.errors import BadRequest, ConfigError, NotFound, Unconditional
from omlx.models.catalog.package import usable_package
from omlx.models.catalog.reference import check_draft
from omlx.models.catalog.registry import Status
from omlx.models.pool.pool import Pool, load_pinned
from omlx.models.pool.speculation import check_value
from omlx.server.http.errors import field_error
from omlx.server.http.guard import ApiKeys, check_exposure
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Resolution, Source, from_json, resolve
from omlx.settings.schema import Scope, Settings, Value, table
from omlx.settings.store import Owner
from omlx.settings.types import Form

from ..login import Gate
from ..web.addresses import PROFILES, SETTINGS, model_path, profile_path
from ..web.pages import Pages, page
from ..web.preferences import Strict, form_data
from .view import (
    CONFIRMED,
    PICKED,
    SettingsView,
    SettingView,
    SettingWarnings,
    applied,
    setting_views,
)

_HOST: Final = re.compile(r"\*|\[[0-9a-f:.]+\]|[\w.-]+", re.IGNORECASE)


class Change(Strict):
    """Body of a change: null removes a stored value; `confirm` names risky settings."""

    changes: dict[str, Any]
    confirm: list[str] = Field(default_factory=list, max_length=8)


class SettingsService:
    """Reads and changes settings; a changed API key takes effect in `keys`."""

    def __init__(self, pool: Pool, configuration: LiveConfiguration, keys: ApiKeys) -> None:
        self._pool = pool
        self._live = configuration
        self._keys = keys
        self._warnings = SettingWarnings(pool.catalog)
        self._bound_host = configuration.current.resolve().settings.host

    def view(self, model: str | None, profile: str | None = None) -> SettingsView:
        """Return the settings of all models, of a model, or of a profile, possibly new.

        Reads files. Raises NotFound, also for an invalid profile name.
        """
        configuration = self._live.refresh()
        stored, owner = configuration.stored, Owner(model, profile)
        try:
            self._check_profile(owner)
        except ConfigError as error:
            raise NotFound(error.code, param="profile", **error.params) from error
        layer = stored.layer(model, profile)
        views = setting_views(owner.scope, self._resolve(owner), layer)
        speculative = None
        entry = None if model is None or profile is not None else self._pool.entry(model)
        if entry is not None and entry.status is Status.USABLE:
            speculative = self._pool.speculation(entry.id)
        return SettingsView(
            stored.revision(model, profile),
            self._with_hints(views, owner),
            configuration.notes,
            model,
            speculative,
            profile=profile,
        )

    def profiles(self, model: str) -> Sequence[ProfileRow]:
        """Return a model's profiles with the settings stored in each."""
        rows = []
        for profile in self._pool.catalog.profiles(model):
            layer = self._live.current.stored.layer(model, profile.name)
            views = setting_views(Scope.PROFILE, resolve([layer]), layer).values()
            own = [view for view in views if view.is_set]
            rows.append(ProfileRow(profile.id, profile_path(model, profile.name), own))
        return rows

    def remove(self, model: str, profile: str) -> None:
        """Remove a profile with all values. Blocks on files."""
        layer = self._live.refresh().stored.layer(model, profile)
        self._live.patch(dict.fromkeys(layer.values), model, profile)

    def inherited(self, model: str) -> Settings:
        """Return a model's settings without those stored for the model.

        Reads files. Raises NotFound.
        """
        package = usable_package(self._pool.entry(model).path)
        return self._live.current.resolve(None, package.layer).settings

    async def change(
        self, change: Change, model: str | None, revision: str, profile: str | None = None
    ) -> SettingsView:
        """Store a change, have models reload, and return the resulting settings.

        Raises BadRequest for the setting at fault, Outdated if `revision` is not the newest.
        """
        owner = Owner(model, profile)
        try:
            await asyncio.to_thread(self._check, change, owner)
            await asyncio.to_thread(self._live.patch, change.changes, *owner, expected=revision)
        except ConfigError as error:
            raise _at_field(error, change.changes) from error
        if "api_key" in change.changes:  # only then: a lost settings file must not remove the key
            self._keys.main = self._resolve(Owner()).settings.api_key
        reloading = [loading.entry.id for loading in await self._pool.reconfigure()]
        if model is not None and change.changes.get("pinned"):
            load_pinned(self._pool)
        affected = [entry for entry in reloading if model in (None, entry)]
        busy = any(self._pool.status(entry).active for entry in affected)
        return await asyncio.to_thread(self._applied, change, owner, busy)

    def _with_hints(
        self, settings: Mapping[str, SettingView], owner: Owner
    ) -> dict[str, SettingView]:
        """Add warnings, and the models to choose from; a draft model has no profiles."""
        entry = None if owner.model is None else self._pool.entry(owner.model)
        resolution, ids = self._resolve(owner), self._pool.catalog.ids
        models = [known.id for known in self._pool.models]
        hinted = {}
        for name, setting in settings.items():
            warning = None
            if setting.source is not Source.BUILT_IN:
                warning = self._warnings.of(name, resolution[name].value, entry)
            options: Sequence[str] = ()
            if name in PICKED:
                options = models if name == "draft_model" else ids
            hinted[name] = replace(setting, warning=warning, options=options)
            if setting.row.form is Form.MAP:
                rows = self._warnings.map_rows(resolution[name].value)
                hinted[name] = replace(hinted[name], rows=rows)
        return hinted

    def _applied(self, change: Change, owner: Owner, busy: bool) -> SettingsView:
        when = applied(change.changes, self._resolve(owner), owner.scope, busy=busy)
        return replace(self.view(*owner), applied=when)

    def _check(self, change: Change, owner: Owner) -> None:
        """Check beyond the store's checks. Raises ConfigError or BadRequest for the setting."""
        self._check_profile(owner)
        model = owner.model
        for name, raw in change.changes.items():
            self._check_setting(name, raw, owner)
            if name in CONFIRMED and raw and name not in change.confirm:
                raise BadRequest("config.confirm", param=name, name=name)
        if model is None and change.changes.keys() & {"host", "api_key"}:
            host = self._after("host", change.changes)
            key = self._after("api_key", change.changes)
            for address in (self._bound_host, str(host)):  # of this run, and of the next one
                check_exposure(address, None if key is None else str(key))

    def _check_profile(self, owner: Owner) -> None:
        """Raise ConfigError for a new profile with an invalid name."""
        model, profile = owner
        if model is None or profile is None:
            return
        if profile not in self._live.current.stored.profiles(model):
            self._pool.catalog.check_profile(model, profile)

    def _check_setting(self, name: str, raw: object, owner: Owner) -> None:
        scope, model = owner.scope, owner.model
        row = table().get(name)
        if row is None:
            raise ConfigError("config.unknown", param=name, name=name)
        if not row.allowed_in(scope):
            raise ConfigError("config.not_stored", param=name, name=name, scope=scope.value)
        if raw is None:
            return
        try:
            value = from_json(row, raw, name)
            check_value(name, value, name)
            if name == "allow_host":
                check_hosts(value)
            if name == "alias" and model is not None:
                self._pool.catalog.check_alias(str(value), model)
        except ConfigError as error:
            raise ConfigError(error.code, param=name, **error.params) from error
        if name == "draft_model":
            target = self._pool.entry(model) if model is not None else None
            check_draft(str(value), target, self._pool.registry)

    def _after(self, name: str, changes: Mapping[str, Any]) -> object:
        """Return a global setting's value after these changes."""
        now = self._live.current.resolve()[name]
        if name not in changes or now.source.rank < Source.GLOBAL.rank:
            return now.value
        return table()[name].default if changes[name] is None else changes[name]

    def _resolve(self, owner: Owner) -> Resolution:
        model, profile = owner
        if model is None:
            return self._live.current.resolve()
        package = usable_package(self._pool.entry(model).path)
        return self._live.current.resolve(model, package.layer, profile=profile)


def _at_field(error: ConfigError, changed: Collection[str]) -> BadRequest:
    """Return a change's error at the setting at fault.

    A contradiction of two settings is reported at the changed setting.
    """
    param, params = error.param, dict(error.params)
    if error.code == "config.bounds":
        param = next(str(params[end]) for end in ("low", "high") if params[end] in changed)
        params["where"] = param
    return BadRequest(error.code, param=param, **params)


def check_hosts(names: Value) -> None:
    """Raise ConfigError for a host name that no browser could send."""
    for name in map(str, names if isinstance(names, tuple) else ()):
        if _HOST.fullmatch(name) is None:
            raise ConfigError("config.host_name", where="allow_host", value=name)


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile in a model's list, with the settings stored in the profile."""

    id: str
    address: str
    settings: Sequence[SettingView]


@dataclass(frozen=True, slots=True)
class ProfileView:
    """A profile of the model `model` (id); a new profile has no set `settings`."""

    model: str
    name: str
    settings: SettingsView

    @property
    def id(self) -> str:
        return f"{self.model}:{self.name}"

    @property
    def is_new(self) -> bool:
        return not any(setting.is_set for setting in self.settings.settings.values())

    @property
    def path(self) -> str:
        """Path of the profile's settings below the API."""
        return f"/models/{self.model}/settings?{urlencode({'profile': self.name})}"

    @property
    def model_page(self) -> str:
        return model_path(self.model)


@dataclass(frozen=True, slots=True)
class SettingsPage:
    gate: Gate
    pool: Pool
    settings: SettingsService

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(SETTINGS, page("settings/page.html", self._form, "settings"))
        profile = f"{PROFILES}/{{name:path}}"
        pages.route(profile, page("models/profile_page.html", self._profile_form, "models"))
        pages.form(profile, self.open)
        of_model = "/models/{name:path}/settings"
        api.add_api_route("/settings", self.show, methods=["GET"])
        api.add_api_route("/settings", self.change, methods=["PATCH"])
        api.add_api_route(of_model, self.show_model, methods=["GET"])
        api.add_api_route(of_model, self.change_model, methods=["PATCH"])
        api.add_api_route(of_model, self.remove, methods=["DELETE"])

    async def _form(self, request: Request) -> SettingsView:
        return await asyncio.to_thread(self.settings.view, None)

    async def _profile_form(self, request: Request) -> ProfileView:
        model = self.pool.entry(request.path_params["name"]).id
        name = request.query_params.get("profile", "")
        return ProfileView(model, name, await asyncio.to_thread(self.settings.view, model, name))

    async def open(self, request: Request) -> Response:
        """Redirect to the profile entered in the form, else to the shown profile."""
        shown = request.query_params.get("profile", "")
        name = (await form_data(request)).get("profile", shown)
        return RedirectResponse(profile_path(request.path_params["name"], name), 303)

    async def show(self, request: Request) -> Response:
        return _answer(await asyncio.to_thread(self.settings.view, None))

    async def show_model(self, request: Request, name: str) -> Response:
        model = self.pool.entry(name).id
        return _answer(await asyncio.to_thread(self.settings.view, model, _profile(request)))

    async def change(self, request: Request) -> Response:
        session = self.gate.session(request)
        view = await self._change(request, None)
        response = _answer(view)
        if "api_key" in (view.applied or ()):  # ended every session; this browser stays logged in
            self.gate.renew(request, response, by_link=session.by_link)
        return response

    async def change_model(self, request: Request, name: str) -> Response:
        return _answer(await self._change(request, self.pool.entry(name).id, _profile(request)))

    async def remove(self, request: Request, name: str) -> Response:
        profile = _profile(request)
        if profile is None:
            raise field_error("request.missing", "profile")
        model = self.pool.entry(name).id
        await asyncio.to_thread(self.settings.remove, model, profile)
        return Response(status_code=204)

    async def _change(
        self, request: Request, model: str | None, profile: str | None = None
    ) -> SettingsView:
        revision = request.headers.get("if-match")
        change = Change.parse(await request.body())
        if revision is None:
            raise Unconditional("config.unconditional")
        return await self.settings.change(change, model, revision.strip('"'), profile)


def _profile(request: Request) -> str | None:
    return request.query_params.get("profile")


def _answer(view: SettingsView) -> Response:
    return JSONResponse(view.record(), headers={"ETag": f'"{view.revision}"'})
