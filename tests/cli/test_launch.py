"""`omlx launch`: programs that report what they were given, against a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omlx.cli.client import LOG, server_for
from omlx.cli.serve.address import find_server
from omlx.clients.agents import AGENTS
from omlx.errors import ConfigError
from omlx.models.catalog.discovery import BUNDLED
from tests.cli.inside import omlx
from tests.cli.serving import Serving, serving
from tests.server.running import TARGET

MODEL = "target"
CONTEXT = 40_960
KEY = "secret-key"
PROGRAM = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
given = [Path(part) for part in (*sys.argv, *os.environ.values()) if part.endswith(".json")]
files = [file for file in given if file.is_file() and file.parent != Path.home()]
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
    models = home / "models"
    path = Path(shutil.copytree(BUNDLED / TARGET, models / MODEL))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    variables = {"OMLX_API_KEY": KEY, "OMLX_HOME": str(home)}
    with serving(home, MODEL, "--model-dir", str(models), **variables) as running:
        yield running


def launch(
    home: Path, path: Path, *arguments: str, key: str = KEY
) -> subprocess.CompletedProcess[str]:
    variables = {"OMLX_HOME": str(home), "OMLX_PORT": "0", "PATH": str(path)}
    variables["REPORT"] = str(home / "report.json")
    if key:
        variables["OMLX_API_KEY"] = key
    return omlx(home, "launch", *arguments, **variables)


def report(home: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((home / "report.json").read_text())
    return record


@pytest.mark.parametrize("agent", AGENTS)
def test_the_program_gets_its_arguments_the_model_the_context_and_the_key(
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
    context = CONTEXT + (13_000 if agent == "claude" else 0)  # which it does not use
    found = {
        "claude": told["variables"].get("CLAUDE_CODE_MAX_CONTEXT_TOKENS", ""),
        "codex": " ".join(told["arguments"]).partition("model_context_window=")[2].split()[:1],
        "opencode": told["variables"].get("OPENCODE_CONFIG_CONTENT", ""),
        "qwen": json.dumps(told["files"]),
        "aider": json.dumps(told["files"]),
    }
    assert str(context) in found[agent]
    # It is short for the one that needs a longer one.
    short = [part in done.stderr for part in ("or more", "Claude Code", "40,960", "65,536")]
    assert all(short) if agent == "claude" else not short[0]


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


def test_a_server_that_does_not_start_is_said_with_the_reason(tmp_path: Path) -> None:
    done = omlx(tmp_path, "bench", "no-such-model", OMLX_PORT="0")
    *_, said = done.stderr.splitlines()
    assert done.returncode == 2
    assert said.startswith("omlx: The server did not start: Model 'no-such-model' not found.")
    assert said.endswith(f"Its log: {tmp_path / '.omlx' / LOG}")


@pytest.mark.parametrize("ended", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"])
def test_without_a_reason_the_log_is_named(
    tmp_path: Path, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal leaves a notice of an earlier problem as the last line of the log."""
    script = tmp_path / "server"
    notice = "" if "Exit" in ended else "print('omlx: a notice', flush=True)\n"
    script.write_text(f"#!{sys.executable}\n{notice}{ended}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(ConfigError) as caught, server_for(tmp_path, None):
        pass
    assert caught.value.code == "launch.no_server"
