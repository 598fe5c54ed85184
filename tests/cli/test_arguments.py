"""Models named on the command line by folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.cli.arguments import model_id


@pytest.mark.parametrize("name", ["models/tiny", "./models/tiny", "{here}/models/tiny"])
def test_a_folder_names_a_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert model_id(name.format(here=tmp_path)) == "tiny"


def test_a_folder_without_a_model_does_not_hide_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "omlx-demo" / "target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_id("omlx-demo/target") == "omlx-demo/target"
