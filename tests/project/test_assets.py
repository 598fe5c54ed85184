"""Assets from npm: pinned by version and hash, without a host, and part of the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from omlx.admin.web.rendering import BUNDLE, ENTRIES, Scripts

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "package-lock.json"


def test_the_lock_names_no_host_and_every_package_has_a_hash() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert "://" not in text
    assert "resolved" not in text
    packages = {name: package for name, package in json.loads(text)["packages"].items() if name}
    assert packages
    assert [
        name for name, package in packages.items() if not package["integrity"].startswith("sha512-")
    ] == []


def test_the_lock_has_the_declared_versions() -> None:
    declared = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    locked = json.loads(LOCK.read_text(encoding="utf-8"))["packages"]
    wanted = {**declared["dependencies"], **declared["devDependencies"]}
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted


def test_installed_assets_are_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"/node_modules/", "/static/bundle/", "/static/vendor/"} <= set(ignored)


def test_without_npm_the_error_names_the_command(tmp_path: Path) -> None:
    for tool in ("dirname", "cmp", "sh", "env"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    copy = tmp_path / "checkout"
    (copy / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/assets", copy / "scripts")
    shutil.copy(LOCK, copy)
    result = subprocess.run(
        [copy / "scripts/assets"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "make assets" in result.stderr


def test_the_installed_libraries_match_the_lock() -> None:
    vendor = ROOT / "static/vendor"
    installed = vendor / "lock.json"
    if not installed.exists() or installed.read_bytes() != LOCK.read_bytes():
        _missing("libraries of the dashboard are missing or old")
    for library in ("uplot", "marked", "dompurify", "highlight", "katex", "mermaid"):
        assert (vendor / library / "LICENSE").is_file()


def test_the_bundled_scripts_are_current() -> None:
    paths = [Scripts(ROOT / "static").path(entry) for entry in ENTRIES]
    if not all(path.startswith(f"{BUNDLE}/") for path in paths):
        _missing("bundled scripts of the dashboard are missing or old")


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what}: `make assets` brings them")
    pytest.skip(f"{what}: `make assets` brings them, where npm is")
