"""Settings as fields: what stands in them, and that none is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from omlx.admin.models.speculation_view import OWN
from omlx.admin.settings.form_view import Control, Field, field_view, form_view
from omlx.admin.settings.view import settings_view
from omlx.catalog import catalog
from omlx.settings.layer import Layer, Source
from omlx.settings.resolve import resolve
from omlx.settings.schema import Scope, Value, table


def told(
    name: str, scope: Scope = Scope.GLOBAL, *, cli: dict[str, Value] | None = None, **stored: Value
) -> Any:
    own = Layer(Source.MODEL if scope is Scope.MODEL else Source.GLOBAL, stored)
    resolution = resolve([own, Layer(Source.CLI, cli or {})])
    return settings_view(scope, resolution, own, "r")["settings"][name]


@pytest.mark.parametrize(
    ("name", "stored", "control", "text"),
    [
        ("port", None, Control.NUMBER, ""),
        ("port", 8080, Control.NUMBER, "8080"),
        ("temperature", 0.7, Control.NUMBER, "0.7"),
        ("lmstudio", False, Control.SWITCH, "false"),
        ("log_level", "debug", Control.CHOICE, "debug"),
        ("allow_host", ("a", "b"), Control.LINES, "a\nb"),
        ("chat_template_kwargs", {"深": 1}, Control.OBJECT, '{"深": 1}'),
        ("memory_limit", 3 << 30, Control.SIZE, "3GB"),
        ("memory_limit", 1_000_000, Control.SIZE, "1000000"),
        ("memory_limit", 0, Control.SIZE, "0"),
        ("default_model", "org/x", Control.TEXT, "org/x"),
        ("api_key", "secret", Control.SECRET, ""),
    ],
)
def test_what_stands_in_a_field(name: str, stored: Value, control: Control, text: str) -> None:
    field = field_view(name, told(name, **({} if stored is None else {name: stored})))
    assert (field.control, field.text, field.is_set) == (control, text, stored is not None)


def test_a_field_whole() -> None:
    view = told("draft_max", Scope.MODEL, cli={"draft_max": 5}, draft_max=9)
    assert field_view("draft_max", view) == Field(
        name="draft_max",
        control=Control.NUMBER,
        text="9",
        effect="5",
        source="cli",
        locked=True,
        takes="reload",
        low=1,
        high=64,
        whole=True,
        is_set=True,
    )


@pytest.mark.parametrize("scope", [Scope.GLOBAL, Scope.MODEL])
def test_every_setting_that_may_be_kept_has_a_field_once(scope: Scope) -> None:
    settings = settings_view(scope, resolve(), Layer(Source.GLOBAL, {}), "r")["settings"]
    names = [field.name for group in form_view(settings) for field in group.fields]
    assert sorted(names) == sorted(row.name for row in table().values() if row.allowed_in(scope))
    rest = [field.name for group in form_view(settings, without=OWN) for field in group.fields]
    assert set(names) - set(rest) == OWN


def test_every_field_has_a_label_and_every_label_a_field() -> None:
    kept = {
        row.name
        for row in table().values()
        if row.allowed_in(Scope.GLOBAL) or row.allowed_in(Scope.MODEL)
    }
    assert {
        key.split(".")[1]
        for key in catalog()
        if key.startswith("settings.") and key.endswith(".label")
    } == kept
