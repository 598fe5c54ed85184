"""The fetched templates are those that the tests list, and each is one that mlx-lm can load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.templates.fetched import FOLDER, ROOT, TEMPLATES, read, tokenizer


def test_every_fetched_template_is_listed() -> None:
    assert "Copyright" in read("LICENSE")
    assert {path.stem for path in FOLDER.glob("*.jinja")} == set(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_a_tokenizer_that_keeps_its_markers(name: str) -> None:
    loaded = tokenizer(name)
    assert loaded.has_chat_template
    for marker in loaded.get_added_vocab():
        (token,) = loaded.encode(marker, add_special_tokens=False)
        assert loaded.decode([token]) == marker


def test_without_pip_the_error_names_the_command(tmp_path: Path) -> None:
    for tool in ("dirname", "cat", "sh", "env", "mktemp", "mkdir", "cp", "rm"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    (tmp_path / "checkout/scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/pip", tmp_path / "checkout/scripts")
    copy = shutil.copy(ROOT / "scripts/templates", tmp_path / "checkout/scripts")
    result = subprocess.run(
        [copy], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "make setup-dev" in result.stderr
