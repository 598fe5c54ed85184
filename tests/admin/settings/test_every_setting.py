"""Every setting through every source: the value is in effect, and shown with its source."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.admin.settings.view import setting_views
from omlx.errors import ConfigError
from omlx.models.pool.speculation import check_value
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.file import FORMAT
from omlx.settings.layers import Source, add_flags, cli_layer, environment_layer, to_json
from omlx.settings.schema import Scope, Setting, table
from omlx.settings.store import GLOBAL_FILE, MODELS_FILE, Store
from omlx.settings.types import Form
from tests.admin.running import API, Administered, change
from tests.server.running import DRAFT, TARGET

SCOPES = {
    "cli": Scope.CLI,
    "environment": Scope.ENVIRONMENT,
    "file": Scope.GLOBAL,
    "model-file": Scope.MODEL,
    "api": Scope.GLOBAL,
    "model-api": Scope.MODEL,
}
SOURCES = {
    "cli": Source.CLI,
    "environment": Source.ENVIRONMENT,
    "file": Source.GLOBAL,
    "model-file": Source.MODEL,
    "api": Source.GLOBAL,
    "model-api": Source.MODEL,
}
TEXTS = {
    "host": "localhost",
    "speculation": "ngram:m=16;draft",
    "draft_model": DRAFT,
    "alias": "mine",
    "model_map": "claude-*=org/x",
    "allow_host": "mac.local",
    "allow_origin": "app://obsidian.md",
    "mcp_server": "files=npx -y @modelcontextprotocol/server-filesystem /tmp",
    "web_search": "http://localhost:8888",
}


def value_of(row: Setting, tmp_path: Path) -> Any:
    """Return a JSON value that is not the default."""
    if row.choices:
        return next(choice for choice in row.choices if choice != row.default)
    if row.kind is dict:
        return {"enable_thinking": False, "深": [1, None]}
    if row.kind is bool:
        return not row.default
    if row.kind in (int, float):
        return row.kind(row.meta.low + (1 if row.kind is int else 0))
    value = str(tmp_path) if row.kind is Path else TEXTS.get(row.name, "org/x")
    return [value] if row.repeatable else value


def as_text(value: Any) -> str:
    if isinstance(value, list):
        return str(value[0])
    return value if isinstance(value, str) else json.dumps(value)


def flags_of(row: Setting, value: Any) -> list[str]:
    if row.kind is bool:
        return [row.flag]  # a flag that turns the default
    return [f"--{row.name.replace('_', '-')}={as_text(value)}"]


def write(home: Path, row: Setting, value: Any, model: str | None) -> None:
    """Write the settings file by hand, from the path of the table."""
    *above, name = (
        row.path.split(".") if model is None else ("models", model, *row.path.split(".")[-2:])
    )
    content: dict[str, Any] = {"format": FORMAT}
    inner = content
    for step in above:
        inner = inner.setdefault(step, {})
    inner[name] = value
    home.mkdir(exist_ok=True)
    (home / (GLOBAL_FILE if model is None else MODELS_FILE)).write_text(
        json.dumps(content), encoding="utf-8"
    )


@cache
def parser() -> ArgumentParser:
    made = ArgumentParser(exit_on_error=False)
    add_flags(made)
    return made


def configured(row: Setting, way: str, value: Any, home: Path) -> LiveConfiguration:
    flags, environ = [], {}
    match way:
        case "cli":
            flags = flags_of(row, value)
        case "environment":
            environ = {row.variable: as_text(value)}
        case "file":
            write(home, row, value, None)
        case "model-file":
            write(home, row, value, TARGET)
    known, unknown = parser().parse_known_args(flags)
    if unknown:
        raise ConfigError("config.unknown", name=unknown[0])
    run = (cli_layer(known), environment_layer(environ))
    return LiveConfiguration(run, Store(home, check_value))


@pytest.fixture(scope="module")
def visitor(server: Administered) -> Iterator[httpx.Client]:
    with server.browser() as client:
        yield client


@pytest.fixture
def browser(visitor: httpx.Client, server: Administered) -> Iterator[httpx.Client]:
    yield visitor
    visitor.headers.pop("Authorization", None)
    for name in (GLOBAL_FILE, MODELS_FILE):
        (server.home / name).unlink(missing_ok=True)


@pytest.mark.parametrize("row", table().values(), ids=lambda row: row.name)
def test_every_setting_by_every_way(row: Setting, browser: httpx.Client, tmp_path: Path) -> None:
    value = value_of(row, tmp_path)
    for way in SCOPES:
        by_one_way(row, way, value, browser, tmp_path / way)


def by_one_way(row: Setting, way: str, value: Any, browser: httpx.Client, home: Path) -> None:
    model = TARGET if way.startswith("model-") else None
    if not row.allowed_in(SCOPES[way]):
        refused_or_ignored(row, way, value, browser, home)
    elif way.endswith("api"):
        through_the_api(row, value, model, browser)
    else:
        resolution = configured(row, way, value, home).current.resolve(model)
        assert to_json(resolution[row.name].value) == value, way
        assert resolution[row.name].source is SOURCES[way]
        if row.allowed_in(Scope.GLOBAL):
            store = Store(home, check_value)
            view = setting_views(Scope.GLOBAL, resolution, store.read().layer())[row.name]
            assert view.value == (None if row.form is Form.SECRET else value)
            assert view.source is SOURCES[way]
            assert view.locked is (way in ("cli", "environment"))


def through_the_api(row: Setting, value: Any, model: str | None, browser: httpx.Client) -> None:
    path = "settings" if model is None else f"models/{model}/settings"
    answer = change(browser, path, row.name, **{row.name: value})
    assert answer.status_code == 200, answer.text
    if row.name == "api_key":
        browser.headers["Authorization"] = f"Bearer {value}"
    view = browser.get(f"{API}/{path}").json()["settings"][row.name]
    shown = None if row.form is Form.SECRET else value
    source = "global" if model is None else "model"
    assert (view["value"], view["stored"], view["source"], view["set"]) == (
        shown,
        shown,
        source,
        True,
    )
    assert answer.json()["applied"][row.name] in ("at_once", "when_idle", "restart")
    assert change(browser, path, **{row.name: None}).status_code == 200
    view = browser.get(f"{API}/{path}").json()["settings"][row.name]
    assert (view["source"], view["set"], view["stored"]) == ("built_in", False, None)


def refused_or_ignored(
    row: Setting, way: str, value: Any, browser: httpx.Client, home: Path
) -> None:
    """A setting is ignored in a scope that does not allow it, or refused with an error."""
    if way.endswith("api"):
        path = "settings" if way == "api" else f"models/{TARGET}/settings"
        answer = change(browser, path, row.name, **{row.name: value})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "config.not_stored")
    elif way == "environment":
        assert (
            configured(row, way, value, home).current.resolve()[row.name].source is Source.BUILT_IN
        )
    else:
        with pytest.raises(ConfigError):
            configured(row, way, value, home).current.resolve(TARGET)


def test_home_is_set_by_flag_or_variable(tmp_path: Path) -> None:
    row = table()["home"]
    for way in ("cli", "environment"):
        configuration = configured(row, way, str(tmp_path / "elsewhere"), tmp_path / "home")
        resolution = configuration.current.resolve()
        assert resolution.settings.home == tmp_path / "elsewhere"
    assert os.fspath(resolution.settings.home).endswith("elsewhere")
