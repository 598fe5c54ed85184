"""One tool loop of each agent that is installed (npm i -g @anthropic-ai/claude-code @openai/codex).

They get a home folder and an environment of their own, and connect to the loopback interface only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.settings.schema import Settings
from tests.server.running import TARGET, Running, omlx
from tests.server.spelling import obedient_pool

PATIENCE_S = 150
PROOF = "proof-of-work.txt"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with omlx(Settings(model_map=("*=" + TARGET,)), build=obedient_pool) as running:
        yield running


def run(command: list[str], home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    if (program := shutil.which(command[0])) is None:
        pytest.skip(f"needs {command[0]}")
    (home / "work").mkdir()
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment}
    return subprocess.run(
        [program, *command[1:]],
        cwd=home / "work",
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def called(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def finished(ran: subprocess.CompletedProcess[str], home: Path) -> None:
    """Check that the command was run and its result reported."""
    proof = home / "work" / PROOF
    assert proof.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    assert proof.read_text() == "it rains\n"
    assert "it rains" in ran.stdout
    assert ran.returncode == 0, ran.stderr


def test_claude_code(server: Running, tmp_path: Path) -> None:
    task = called("Bash", command=f"echo it rains > {PROOF}; cat {PROOF}", description="look")
    ran = run(
        ["claude", "-p", task, "--allowedTools", "Bash"],
        tmp_path,
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        DISABLE_TELEMETRY="1",
    )
    finished(ran, tmp_path)


def test_codex(server: Running, tmp_path: Path) -> None:
    task = called("exec_command", cmd=f"echo it rains > {PROOF}; cat {PROOF}")
    provider = f'{{name="omlx", base_url="{server.url}/v1", wire_api="responses"}}'
    ran = run(
        [
            *(
                "codex",
                "exec",
                "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox",
            ),
            *(
                "-c",
                "model_provider=omlx",
                "-c",
                f"model={TARGET}",
                "-c",
                f"model_providers.omlx={provider}",
            ),
            task,
        ],
        tmp_path,
    )
    finished(ran, tmp_path)
