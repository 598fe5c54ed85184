"""`omlx launch`: programs that report what they were given, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omlx.cli.address import find_server
from omlx.clients.agents import AGENTS
from omlx.models.catalog.discovery import BUNDLED
from tests.cli.serving import Serving, serving
from tests.processes import environment
from tests.server.running import TARGET

MODEL = "target"
KEY = "secret-key"
PROGRAM = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
files = [Path(part) for part in sys.argv if part.startswith("/") and part.endswith(".json")]
report = {{
    "arguments": sys.argv[1:],
    "variables": dict(os.environ),
    "files": [json.loads(file.read_text()) for file in files],
}}
Path(os.environ["REPORT"]).write_text(json.dumps(report))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program for each agent."""
    folder = tmp_path_factory.mktemp("bin")
    for name in AGENTS:
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    models = str((BUNDLED / TARGET).parent)
    variables = {"OMLX_API_KEY": KEY, "OMLX_HOME": str(home)}
    with serving(home, MODEL, "--model-dir", models, **variables) as running:
        yield running


def launch(
    home: Path, path: Path, *arguments: str, key: str = KEY
) -> subprocess.CompletedProcess[str]:
    variables = {"OMLX_HOME": str(home), "PATH": str(path), "REPORT": str(home / "report.json")}
    if key:
        variables["OMLX_API_KEY"] = key
    return subprocess.run(
        [sys.executable, "-m", "omlx", "launch", *arguments],
        env=environment(home, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def report(home: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((home / "report.json").read_text())
    return record


@pytest.mark.parametrize("agent", AGENTS)
def test_the_program_gets_its_arguments_the_model_and_the_key(
    server: Serving, home: Path, programs: Path, agent: str
) -> None:
    done = launch(home, programs, agent, "exec", "--model", "its own", "say hi")
    assert done.returncode == 7, done.stderr
    assert MODEL in done.stderr
    told = report(home)
    assert told["arguments"][-4:] == ["exec", "--model", "its own", "say hi"]
    given = json.dumps([told["arguments"], told["variables"], told["files"]])
    assert server.url in given
    assert MODEL in given
    assert KEY in told["variables"].values()
    assert KEY not in json.dumps([told["arguments"], told["files"]])  # others read these


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode", "aider"])
def test_the_program_knows_how_long_the_context_is(
    server: Serving, home: Path, programs: Path, agent: str
) -> None:
    assert launch(home, programs, agent).returncode == 7
    told = report(home)
    context = "17096" if agent == "claude" else "4096"  # less 13,000 that it does not use
    found = {
        "claude": told["variables"].get("CLAUDE_CODE_MAX_CONTEXT_TOKENS", ""),
        "codex": " ".join(told["arguments"]).partition("model_context_window=")[2].split()[:1],
        "opencode": told["variables"].get("OPENCODE_CONFIG_CONTENT", ""),
        "aider": json.dumps(told["files"]),
    }
    assert context in found[agent]


def test_a_server_is_started_for_the_program_and_ends_with_it(
    tmp_path: Path, programs: Path
) -> None:
    done = launch(tmp_path, programs, "--model", TARGET, "codex", key="")
    assert done.returncode == 7, done.stderr
    assert "launch.log" in done.stderr
    assert TARGET in report(tmp_path)["arguments"][1]
    assert find_server(tmp_path) is None


def test_what_is_missing_is_named_with_the_way_to_it(
    server: Serving, home: Path, programs: Path, tmp_path: Path
) -> None:
    done = launch(home, tmp_path, "claude")
    assert (done.returncode, "npm install -g" in done.stderr) == (2, True), done.stderr
    done = launch(home, programs, "--model", "no-such-model", "claude")
    assert (done.returncode, "no-such-model" in done.stderr) == (2, True), done.stderr
