"""Sessions of agents that are longer than the model's context: each compacts its conversation.

The programs are those of `test_programs`, started by `omlx launch`. In one run the model reads
twelve files whose texts do not fit together; it answers a request to compact with what it has
read, and so finishes only if the summary reaches the next prompt.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from omlx.cli.serve.address import published
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.models.pool.pool import build_pool
from omlx.server.request.activity import OK
from omlx.server.services import Services
from omlx.settings.schema import Settings
from tests.agents.scripted import REPORT, Scripted, Step
from tests.processes import environment
from tests.server.running import TARGET, omlx
from tests.server.spelling import read

PATIENCE_S = 240
TASK = "Read all the parts."
TURNS = 12
LINE = "the rain falls on the plain again and again"
VOCABULARY = 32_768
"""As large as small real ones: with the bundled 2,048 tokens, instructions take twice as many."""


@dataclass(frozen=True)
class Session:
    """`compaction`: words of its request to compact that no other request has. The model calls
    `tool` with a command as the argument `command`; a file has `lines` of some 13 tokens."""

    arguments: tuple[str, ...]
    tool: str
    command: str
    compaction: str
    context: int = 16_384
    lines: int = 90

    def steps(self) -> tuple[Step, ...]:
        # Claude Code adds files that `cat` has shown to its first prompt after it has compacted.
        calls = [{self.command: f"tail -n +1 part-{turn:02}.txt"} for turn in range(TURNS)]
        more = {"description": "look"} if self.tool.lower() == "bash" else {}
        return tuple(Step(self.tool, call | more, finding(turn)) for turn, call in enumerate(calls))


SESSIONS = {
    # Its instructions take 21,600 tokens here, and 3,000 more after it has compacted.
    "claude": Session(
        ("-p", TASK, "--allowedTools", "Bash"),
        tool="Bash",
        command="command",
        compaction="REMINDER: Do NOT call any tools. Respond with plain text only",
        context=65_536,
        lines=300,
    ),
    "codex": Session(
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        tool="exec_command",
        command="cmd",
        compaction="You are performing a CONTEXT CHECKPOINT COMPACTION",
    ),
    "opencode": Session(
        ("run", TASK),
        tool="bash",
        command="command",
        compaction="Do not mention the summary process or that context was compacted.",
    ),
    # Its instructions take 20,000 tokens; versions before 0.24 cut long results.
    "qwen": Session(
        ("--yolo", "-p", TASK),
        tool="run_shell_command",
        command="command",
        compaction="First, reason in your",
        context=49_152,
        lines=300,
    ),
}

pytestmark = pytest.mark.slow


def finding(turn: int) -> str:
    """The first line of a file, which no other text has: an agent may cut the end of a result."""
    return f"finding-{turn:02}"


class Summarizing(Scripted):
    """Answers a request to compact with the findings that its prompt holds."""

    def _output(self, text: str) -> list[int]:
        if not any(session.compaction in text for session in SESSIONS.values()):
            return super()._output(text)
        known = [step.proof for step in self.steps if step.proof in text]
        return self._ids(f"Read so far: {' '.join(known)}.")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model's folder, with a vocabulary that is learned from Python's own sources."""
    path = Path(shutil.copytree(BUNDLED / TARGET, tmp_path_factory.mktemp("models") / "model"))
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted([*library.glob("*.py"), *library.glob("pydoc_data/*.py")])
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.train_new_from_iterator(texts, VOCABULARY).save_pretrained(path)
    return path


@contextmanager
def serving(model: Path, home: Path, session: Session) -> Iterator[list[Services]]:
    """A server that `omlx launch` finds; gives its services."""
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = session.context
    (model / "config.json").write_text(json.dumps(config))
    kind = type("Summarizing", (Summarizing,), {"steps": session.steps()})
    started: list[Services] = []
    with (
        omlx(
            Settings(record_prompts=True),
            registry=Registry((ModelEntry(TARGET, model, "model_dir"),)),
            build=partial(build_pool, read=partial(read, kind=kind, context=session.context)),
            prepare=lambda app, services: started.append(services),
        ) as running,
        published(home, running.url),
    ):
        yield started


def launch(name: str, session: Session, home: Path) -> subprocess.CompletedProcess[str]:
    work = home / "work"
    work.mkdir()
    for turn in range(TURNS):
        lines = [f"{number} {LINE}" for number in range(session.lines)]
        (work / f"part-{turn:02}.txt").write_text("\n".join([finding(turn), *lines]) + "\n")
    return subprocess.run(
        [sys.executable, "-m", "omlx", "launch", name, *session.arguments],
        cwd=work,
        env=environment(
            home,
            OMLX_HOME=str(home),
            NO_PROXY="127.0.0.1",
            PWD=str(work),
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            DISABLE_TELEMETRY="1",
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_of_twelve_turns_compacts(model: Path, tmp_path: Path, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}")
    session = SESSIONS[name]
    with serving(model, tmp_path, session) as started:
        ran = launch(name, session, tmp_path)
        ended = started[0].activity.outcomes()
    outcomes = [each for each in ended if each.prompt is not None or each.error is not None]
    sizes = [outcome.prompt or 0 for outcome in outcomes]
    assert all((each.status, each.error) == (OK, None) for each in outcomes), outcomes
    texts = [outcome.prompt_text or "" for outcome in outcomes]
    compactions = [at for at, text in enumerate(texts) if session.compaction in text]
    assert compactions, sizes
    assert all(sizes[at + 1] < sizes[at - 1] for at in compactions), sizes
    assert len(outcomes) - len(compactions) > TURNS, sizes  # the last one reports
    assert REPORT in ran.stdout
    assert ran.returncode == 0, ran.stderr
