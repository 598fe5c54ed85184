"""Locked versions, the set-up script, the wheel: what runs before any code of this project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from omlx.admin.web.rendering import ENTRIES, Scripts
from tests.wheel import ROOT

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_pins_everything_with_hashes_and_names_no_host(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert [
        entry.split()[0]
        for entry in requirements
        if not re.match(r"[\w.-]+==\S+.*--hash=sha256:", entry, re.S)
    ] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_covers_macos_and_linux(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert re.search(r"^mlx==.*darwin", text, re.M)
    assert re.search(r"^mlx-metal==.*darwin", text, re.M)
    assert re.search(r"^mlx-cpu==.*linux", text, re.M)


def check_machine(tmp_path: Path, **answers: str) -> subprocess.CompletedProcess[str]:
    """Run the set-up script's check where programs print `answers`; `python3` is this Python."""
    machine = {"uname_s": "Darwin", "uname_m": "arm64", "sw_vers": "15.1", "sysctl": "0", **answers}
    programs = {
        "uname": f'[ "$1" = -s ] && echo {machine["uname_s"]} || echo {machine["uname_m"]}',
        "sw_vers": f"echo {machine['sw_vers']}",
        "sysctl": f"echo {machine['sysctl']}",
    }
    for name, body in programs.items():
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        script.chmod(0o755)
    for tool in ("dirname", "cat", "cmp", "env"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    if "python" in answers:
        (tmp_path / "python3").write_text(f"#!/bin/sh\n{answers['python']}\n", encoding="utf-8")
        (tmp_path / "python3").chmod(0o755)
    return subprocess.run(
        ["/bin/sh", str(ROOT / "scripts/setup")],
        env={"PATH": str(tmp_path), "OMLX_SETUP_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"uname_m": "x86_64"}, "Intel Macs"),
        ({"uname_m": "x86_64", "sysctl": "1"}, "Rosetta"),
        ({"sw_vers": "13.7"}, "macOS 14 or later; this is macOS 13.7"),
        ({"uname_s": "FreeBSD"}, "this is FreeBSD"),
        ({}, "brew install uv"),
        ({"python": "exit 1"}, "omlx needs Python 3.11 or later"),
        ({"uname_s": "Linux", "uname_m": "x86_64"}, "astral.sh"),
    ],
)
def test_a_machine_that_cannot_run_it_gets_a_sentence(
    tmp_path: Path, answers: dict[str, str], said: str
) -> None:
    result = check_machine(tmp_path, **answers)
    assert result.returncode == 1
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_machine_that_can_run_it_is_taken_as_it_is(tmp_path: Path) -> None:
    result = check_machine(tmp_path, python="exit 0")
    assert (result.returncode, result.stdout.strip()) == (0, "python3")


def test_this_python_is_new_enough_for_the_script(tmp_path: Path) -> None:
    system = os.uname()
    call = f'exec {sys.executable} "$@"'
    result = check_machine(tmp_path, uname_s=system.sysname, uname_m=system.machine, python=call)
    assert (result.returncode, result.stdout.strip()) == (0, "python3"), result.stderr


@pytest.fixture(scope="module")
def wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked as in site-packages."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(target)
    return target


def run_installed(wheel: Path, folder: Path, *arguments: str) -> str:
    environ = {**os.environ, "PYTHONPATH": str(wheel), "HOME": str(folder)}
    for name in ("HF_HOME", "HF_HUB_CACHE", "OMLX_HOME", "OMLX_MODEL_DIR"):
        environ.pop(name, None)
    shown = subprocess.run(
        [sys.executable, "-m", "omlx", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def test_the_wheel_works_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    assert run_installed(wheel, tmp_path, "--version").startswith("omlx ")
    models = json.loads(run_installed(wheel, tmp_path, "models", "--json"))
    usable = {model["id"]: model["path"] for model in models if model["status"] == "usable"}
    assert {"omlx-demo/target", "omlx-demo/draft"} <= set(usable)
    assert all(Path(path).is_relative_to(wheel) for path in usable.values())


def test_the_wheel_holds_every_module_and_text_of_the_checkout(wheel: Path) -> None:
    modules = {path.relative_to(ROOT) for path in (ROOT / "omlx").rglob("*") if path.is_file()}
    modules |= {"omlx" / path.relative_to(ROOT) for path in (ROOT / "admin").rglob("*.py")}
    modules = {path for path in modules if path.suffix not in (".pyc", ".map")}
    assert {str(path) for path in modules if not (wheel / path).is_file()} == set()


def test_the_wheel_uses_its_bundled_scripts(wheel: Path) -> None:
    installed, checkout = Scripts(wheel / "omlx/static"), Scripts(ROOT / "static")
    for entry in ENTRIES:
        assert installed.path(entry) == checkout.path(entry)


@pytest.mark.parametrize("folder", ["locales", "static", "templates"])
def test_the_wheel_holds_what_the_dashboard_shows(wheel: Path, folder: str) -> None:
    files = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()
    }
    assert files
    assert {file for file in files if not (wheel / "omlx" / file).is_file()} == set()
