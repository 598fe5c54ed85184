"""The workflows of GitHub are well-formed, bounded, and run only commands that this project has."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import pytest
import yaml

from lab.bench.__main__ import main as bench
from omlx.cli.main import main
from tests.lanes import few
from tests.wheel import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
RUNNERS = {"macos-15", "ubuntu-24.04"}

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


def steps() -> Iterator[dict[str, Any]]:
    for path in WORKFLOWS:
        for job in jobs(path).values():
            yield from job["steps"]
    for path in ACTIONS:
        yield from yaml.safe_load(path.read_text(encoding="utf-8"))["runs"]["steps"]


def lines() -> Iterator[str]:
    """Yield the command lines of all steps, those that go on joined."""
    for step in steps():
        text = re.sub(r"<<'PY'.*?^PY$", "", step.get("run", ""), flags=re.M | re.S)
        yield from text.replace("\\\n", " ").splitlines()


@every_workflow
def test_every_job_is_bounded_and_may_only_read(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) >= {"push", "pull_request"}  # YAML reads the key `on` as true
    for name, job in workflow["jobs"].items():
        assert job["runs-on"] in RUNNERS, name
        assert 0 < job["timeout-minutes"] <= 60, name
        assert job.get("strategy", {}).get("fail-fast", False) is False, name


def test_a_step_runs_one_thing_and_what_it_uses_is_here() -> None:
    for step in steps():
        assert ("run" in step) != ("uses" in step), step
        if step.get("uses", "").startswith("./"):
            assert (ROOT / step["uses"] / "action.yml").is_file(), step
        elif "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), step


def test_every_job_on_a_mac_asserts_a_gpu_first() -> None:
    for name, job in jobs(ROOT / ".github/workflows/metal.yml").items():
        used = [step.get("uses") for step in job["steps"]]
        assert used[:2] == ["actions/checkout@v4", "./.github/actions/metal"], name


def test_targets_of_make_files_and_scripts_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(lines())
    for target in re.findall(r"\bmake ([\w -]+?)(?= ARGS|$)", text, re.M):
        for word in target.replace("setup-$", "setup-run").split():
            assert re.search(rf"^{word}:", makefile, re.M), word
    paths = re.findall(r"(?<!/)\b((?:lab/tests|tests|scripts)/[\w./-]+)", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_folder_of_tests_runs_at_night_with_its_slow_members() -> None:
    matrix = jobs(ROOT / ".github/workflows/check.yml")["products"]["strategy"]["matrix"]
    named = " ".join(matrix["tests"]).split()
    folders = {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/test_*.py")}
    assert folders - set(named) == set()
    assert "tests/test_*.py" in named


def test_commands_have_their_flags() -> None:
    matrix = jobs(ROOT / ".github/workflows/metal.yml")["exact"]["strategy"]["matrix"]
    commands = [line for line in lines() if re.search("-m (omlx|lab.bench) ", line)]
    assert commands
    for line in commands:
        filled = line.replace("${{ matrix.weights }}", " ".join(matrix["weights"]))
        tool, rest = re.split("-m (omlx|lab.bench) ", filled)[1:]
        words = shlex.split(re.split(r"[|>]", rest)[0])
        known = help_of(tool, words[: 2 if words[0] == "service" else 1])
        for flag in re.findall(r"--[a-z-]+", filled):
            assert re.search(rf"{flag}\b", known), (words, flag)


def help_of(tool: str, command: list[str]) -> str:
    output, run = StringIO(), main if tool == "omlx" else bench
    with pytest.raises(SystemExit), redirect_stdout(output), redirect_stderr(output):
        run([*command, "--help"])
    return output.getvalue()


@pytest.mark.parametrize(
    ("word", "passes"),
    few([('"window": 345', True), ("no such word", False)], ('"window": 345', True)),
    ids=["right", "wrong"],
)
def test_the_golden_answer_of_the_bundled_pair(word: str, passes: bool) -> None:
    """The script finds it, over a real server and curl; and fails where the answer is another."""
    pair = ("omlx-demo/target", "omlx-demo/draft")
    question = 'Repeat this: [{"apple": 12, "window": 345}]'
    environ = {key: value for key, value in os.environ.items() if not key.startswith("OMLX_")}
    result = subprocess.run(
        [ROOT / "scripts/ask-pair", *pair, question, word],
        env={**environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert (result.returncode == 0) is passes, result.stderr
    assert re.search(r"^drafted: [1-9]", result.stdout, re.M), result.stderr
