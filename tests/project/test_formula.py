"""The Homebrew formula that packaging/formula writes for a wheel."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from omlx import __version__
from tests.wheel import ROOT

HOME = "https://example.org/omlx"


def write_formula(url: str, wheel: Path, home: str = HOME) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "packaging/formula"), url, str(wheel), "--homepage", home]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def stanza(formula: str, name: str) -> str:
    found = re.search(rf'^  {name} "(.*?)"', formula, re.M)
    assert found is not None, name
    return found[1]


def test_it_names_the_release_and_its_digest(built: Path, tmp_path: Path) -> None:
    url = f"https://example.org/releases/{built.name}"
    wrote = write_formula(url, built)
    assert wrote.returncode == 0, wrote.stderr
    formula = wrote.stdout
    assert "\nclass Omlx < Formula\n" in formula
    assert stanza(formula, "url") == url
    assert stanza(formula, "homepage") == HOME
    assert stanza(formula, "version") == __version__
    assert stanza(formula, "sha256") == hashlib.sha256(built.read_bytes()).hexdigest()
    assert "$" not in formula
    for block in ("install", "service do", "test do"):
        assert block in formula
    assert re.search(r'system\(\*install, "--no-deps", "mlx-vlm>=[\d.]+"\)', formula)
    assert re.search(r'system\(\*install, "requests", "pillow>=\d+"\)', formula)
    if ruby := shutil.which("ruby"):
        file = tmp_path / "omlx.rb"
        file.write_text(formula, encoding="utf-8")
        checked = subprocess.run([ruby, "-wc", str(file)], capture_output=True, text=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "Syntax OK\n", "")


@pytest.mark.parametrize(
    ("url", "home", "said"),
    [
        ("https://example.org/omlx-9.9-py3-none-any.whl", HOME, "another name"),
        ("http://example.org/{name}", HOME, "not a plain https address"),
        ('https://example.org/"{name}', HOME, "not a plain https address"),
        ("https://example.org/{name}", "https://#{home}", "not a plain https address"),
    ],
)
def test_an_address_that_cannot_be_it_is_refused(
    built: Path, url: str, home: str, said: str
) -> None:
    wrote = write_formula(url.replace("{name}", built.name), built, home)
    assert (wrote.returncode, wrote.stdout) == (1, "")
    assert said in wrote.stderr


def test_a_file_that_is_no_wheel_of_omlx_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "omlx-1.0-py3-none-any.whl"
    url = f"https://example.org/{file.name}"
    assert write_formula(url, file).returncode == 1
    file.write_text("<html>not found")
    assert "not a zip file" in write_formula(url, file).stderr
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme", "")
    assert "not a wheel" in write_formula(url, file).stderr
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "Name: x\nVersion: 1\n")
    assert "it holds x" in write_formula(url, file).stderr
