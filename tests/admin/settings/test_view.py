"""Settings as form fields."""

from __future__ import annotations

import pytest

from omlx.admin.models.model_page import SETTINGS
from omlx.admin.settings.view import FieldGroup, SettingsView, SettingView, setting_views
from omlx.catalog import catalog
from omlx.settings.layers import Layer, Source, resolve
from omlx.settings.schema import Scope, Value, table


def view(
    name: str, scope: Scope = Scope.GLOBAL, *, cli: dict[str, Value] | None = None, **stored: Value
) -> SettingView:
    own = Layer(Source.MODEL if scope is Scope.MODEL else Source.GLOBAL, stored)
    return setting_views(scope, resolve([own, Layer(Source.CLI, cli or {})]), own)[name]


@pytest.mark.parametrize(
    ("name", "stored", "control", "text"),
    [
        ("port", None, "number", ""),
        ("port", 8080, "number", "8080"),
        ("temperature", 0.7, "number", "0.7"),
        ("lmstudio", False, "switch", "false"),
        ("log_level", "debug", "choice", "debug"),
        ("allow_host", ("a", "b"), "lines", "a\nb"),
        ("chat_template_kwargs", {"深": 1}, "object", '{"深": 1}'),
        ("memory_limit", 3 << 30, "size", "3GB"),
        ("memory_limit", 1_000_000, "size", "1000000"),
        ("memory_limit", 0, "size", "0"),
        ("default_model", "org/x", "model", "org/x"),
        ("api_key", "secret", "secret", ""),
    ],
)
def test_a_field_holds_the_stored_value_as_it_is_typed(
    name: str, stored: Value, control: str, text: str
) -> None:
    field = view(name, **({} if stored is None else {name: stored}))
    assert (field.control, field.text, field.is_set) == (control, text, stored is not None)


def test_a_field_that_a_flag_overrides() -> None:
    field = view("draft_max", Scope.MODEL, cli={"draft_max": 5}, draft_max=9)
    assert (field.name, field.control, field.keyboard) == ("draft_max", "number", "numeric")
    assert (field.text, field.effect, field.is_set) == ("9", "5", True)
    assert (field.source, field.locked, field.lock) == (Source.CLI, True, "--draft-max")
    assert (field.record()["low"], field.record()["high"]) == (1, 64)
    assert not field.confirm


def test_a_number_that_may_be_a_fraction_or_negative_gets_the_full_keyboard() -> None:
    assert view("temperature").keyboard == "text"
    assert view("presence_penalty").keyboard == "text"


def field_names(groups: list[FieldGroup]) -> list[str]:
    names: list[str] = []
    for group in groups:
        names += [field.name for field in group.fields]
    return names


@pytest.mark.parametrize("scope", [Scope.GLOBAL, Scope.MODEL])
def test_every_setting_that_can_be_stored_has_a_field_once(scope: Scope) -> None:
    settings = SettingsView("r", setting_views(scope, resolve(), Layer(Source.GLOBAL, {})))
    names = field_names(settings.groups())
    assert sorted(names) == sorted(row.name for row in table().values() if row.allowed_in(scope))
    others = field_names(settings.groups(without=SETTINGS))
    assert set(names) - set(others) == SETTINGS


def test_every_field_has_a_label_and_every_label_a_field() -> None:
    stored = {
        row.name
        for row in table().values()
        if any(map(row.allowed_in, (Scope.GLOBAL, Scope.MODEL, Scope.PROFILE)))
    }
    keys = [key.split(".") for key in catalog()]
    assert {key[1] for key in keys if key[0] == "settings" and key[-1] == "label"} == stored
