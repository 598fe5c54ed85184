"""The table is whole: every setting is reachable, described, bounded, and in the document."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from lab.settings_page import document
from omlx.catalog import catalog
from omlx.settings.layers import add_flags
from omlx.settings.schema import Scope, Setting, Settings, table

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
