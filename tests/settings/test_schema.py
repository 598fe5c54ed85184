"""The table is whole: settings are reachable, described, documented, and bounded."""

from __future__ import annotations

import inspect
import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from lab.settings_page import document
from omlx.catalog import catalog
from omlx.errors import ConfigError
from omlx.settings.layers import Layer, add_flags, cli_layer, environment_layer, parse
from omlx.settings.schema import Scope, Setting, Settings, table
from omlx.settings.store import GLOBAL_FILE, Store
from omlx.settings.types import RENDERER_ARGUMENTS, allows

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = list(table().values())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_help_and_every_number_bounds(setting: Setting) -> None:
    assert setting.help_key in catalog()
    if setting.kind in (int, float):
        assert setting.meta.low < setting.meta.high


def test_no_help_is_left_without_a_setting() -> None:
    keys = {key for key in catalog() if key.startswith("settings.") and key.endswith(".help")}
    assert keys == {setting.help_key for setting in SETTINGS}


def test_every_setting_has_a_flag_unless_it_is_a_models_own() -> None:
    parser = ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    shown = parser.format_help()
    without = [setting.name for setting in SETTINGS if setting.flag not in shown]
    assert without == [setting.name for setting in SETTINGS if not setting.allowed_in(Scope.CLI)]
    assert without == ["pinned", "alias", "system_prompt"]


def test_defaults_are_those_of_the_typed_settings() -> None:
    settings = Settings()
    assert {name: row.default for name, row in table().items()} == {
        name: getattr(settings, name) for name in table()
    }


def test_the_document_is_up_to_date() -> None:
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == document(), "run `make docs`"


Read = Callable[[str, str, Path], Layer]

UNUSABLE = [
    ("chat_template_kwargs", '{"chat_template": "x"}', "config.reserved"),
    ("chat_template_kwargs", '{"enable_thinking": false, "messages": []}', "config.reserved"),
    ("api_key", "a\r\nb", "config.secret"),
    ("api_key", "a\tb", "config.secret"),
    ("api_key", "schlüssel", "config.secret"),
    ("api_key", " key", "config.secret"),
    ("api_key", "k" * 100_000, "config.secret"),
]


def from_flag(name: str, text: str, home: Path) -> Layer:
    parser = ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return cli_layer(parser.parse_args([f"--{name.replace('_', '-')}={text}"]))


def from_variable(name: str, text: str, home: Path) -> Layer:
    return environment_layer({f"OMLX_{name.upper()}": text})


def from_patch(name: str, text: str, home: Path) -> Layer:
    Store(home).patch({name: json.loads(text) if text.startswith("{") else text})
    return Store(home).read().layer()


def from_file(name: str, text: str, home: Path) -> Layer:
    *sections, key = table()[name].path.split(".")
    content: dict[str, object] = {key: json.loads(text) if text.startswith("{") else text}
    for section in reversed(sections):
        content = {section: content}
    (home / GLOBAL_FILE).write_text(json.dumps({"format": "omlx-config/1", **content}))
    return Store(home).read().layer()


@pytest.mark.parametrize("read", [from_flag, from_variable, from_patch, from_file])
@pytest.mark.parametrize(("name", "text", "code"), UNUSABLE)
def test_a_value_that_breaks_every_request_is_refused(
    read: Read, name: str, text: str, code: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(name, text, tmp_path)
    assert refusal.value.code == code
    assert "100000" not in refusal.value.message
    assert len(refusal.value.message) < 300


@pytest.mark.parametrize("read", [from_flag, from_variable, from_patch, from_file])
@pytest.mark.parametrize(
    ("name", "text"), [("api_key", "a key: ~!"), ("chat_template_kwargs", '{"thinking": true}')]
)
def test_a_usable_value_is_taken(read: Read, name: str, text: str, tmp_path: Path) -> None:
    assert name in read(name, text, tmp_path).values


def test_the_reserved_names_are_those_of_the_renderer() -> None:
    signature = inspect.signature(PreTrainedTokenizerBase.apply_chat_template)
    assert {*signature.parameters, "messages"} == RENDERER_ARGUMENTS


def origins(*texts: str) -> tuple[str, ...]:
    value = parse(table()["allow_origin"], texts, "--allow-origin")
    assert isinstance(value, tuple)
    return tuple(str(origin) for origin in value)


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("*", ["http://a.example", "null", "app://x"], []),
        ("null", ["null"], ["http://null"]),
        ("app://*", ["app://obsidian.md", "APP://x"], ["app:x", "http://app", "xapp://x"]),
        ("http://localhost:*", ["http://localhost:5173", "http://localhost"], ["https://localhost:1"]),
        (
            "http://localhost:*",
            [],
            [f"http://localhost{end}" for end in (".evil.example:80", ":1.evil", ":1@evil")],
        ),
        ("http://[::1]:*", ["http://[::1]:80"], ["http://[::2]:80"]),
        ("https://App.example/", ["https://app.example"], ["https://app.example:8"]),
        ("http://app.example:80", ["http://app.example:80"], ["http://app.example:800"]),
    ],
)  # fmt: skip
def test_origins_and_their_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    patterns = origins(pattern)
    assert [origin for origin in allowed if not allows(patterns, origin)] == []
    assert [origin for origin in refused if allows(patterns, origin)] == []


@pytest.mark.parametrize(
    "text",
    [
        "app.example",
        "https://*.example.com",
        "http://localhost*",
        "http://localhost:5*",
        "*://localhost",
        "http://app.example/path",
        "http://app.example?x",
        "http://",
        "app:*",
        "http://user@app.example",
    ],
)
def test_a_pattern_that_would_match_nothing_or_too_much_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        origins(text)
    assert (caught.value.code, caught.value.params["value"]) == ("config.origin", text)
    assert "--allow-origin" in caught.value.message
