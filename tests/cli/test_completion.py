"""`omlx completion`: the scripts, and what shells make of them where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omlx.cli.main import COMMANDS
from tests.cli.inside import omlx
from tests.processes import environment

BASH = """
source script
COMP_WORDS=(omlx {words}) COMP_CWORD={index} COMP_LINE="omlx {words}" COMP_POINT=99
$(complete -p omlx | sed 's/.*-F \\([^ ]*\\).*/\\1/') omlx "{last}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source script; complete -C 'omlx {words}'"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        done = omlx(folder, "completion", shell)
        assert done.returncode == 0, done.stderr
        (folder / shell).write_text(done.stdout)
    program = folder / "bin/omlx"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m omlx "$@"\n')
    program.chmod(0o755)
    return folder


def completed(scripts: Path, shell: str, words: str) -> list[str]:
    """Return what a shell offers after `omlx words`; the last word is completed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = scripts / shell
    parts = words.split(" ")
    text = BASH.format(words=words, index=len(parts), last=parts[-1])
    if shell == "fish":
        text = FISH.format(words=words)
    path = f"{scripts / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", text.replace("script", str(script), 1)],
        env=environment(scripts, PATH=path),
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split("\t")[0].strip() for line in done.stdout.splitlines()]


def test_every_command_is_in_every_script(scripts: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        assert [name for name in COMMANDS if name not in text] == []
        assert "--memory-limit" in text
    # In its function alone: zsh would run it once for each argument when it reads the script.
    assert (scripts / "zsh").read_text().count("$(omlx") == 1


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_flags_and_models(scripts: Path, shell: str) -> None:
    assert {"serve", "service"} <= set(completed(scripts, shell, "ser"))
    assert "--memory-limit" in completed(scripts, shell, "serve --mem")
    assert "omlx-demo/target" in completed(scripts, shell, "run omlx-demo/")


def test_zsh_takes_the_script(scripts: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    check = f'autoload -U compinit; compinit -D; eval "$(<{scripts}/zsh)"; print $_comps[omlx]'
    done = subprocess.run(
        ["zsh", "-f", "-c", check],
        env=environment(scripts),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip()
    assert done.stderr == ""
