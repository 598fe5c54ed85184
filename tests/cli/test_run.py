"""`omlx run`: questions and answers on a terminal, in a pipe, and on a screen in memory."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from omlx.catalog import escaped_lines
from omlx.cli.client import Client
from omlx.cli.main import main
from omlx.cli.run.command import Conversation, Piece, attachment
from omlx.cli.run.terminal import Screen, complete_blocks
from omlx.cli.serve.address import published
from omlx.errors import BadRequest, ConfigError
from omlx.models.catalog.discovery import BUNDLED
from tests.admin.running import Administered, administered
from tests.cli.terminal import terminal
from tests.processes import environment
from tests.server.running import TARGET

QUESTION = "Write a list of numbers."
_PARTS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    home = tmp_path_factory.mktemp("home")
    with administered(home) as running, published(home, running.running.url):
        yield running


@pytest.fixture
def client(server: Administered) -> Client:
    return Client(server.running.url)


def test_a_prompt_is_answered_in_plain_text_without_a_terminal(
    server: Administered, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("20."))
    assert main(["run", "target", "--home", str(server.home), "Count", "to"]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert "\x1b" not in shown.out
    assert "omlx:" not in shown.err


def test_an_empty_pipe_and_an_unknown_model_are_refused(
    server: Administered, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["run", "target", "--home", str(server.home)]) == 2
    assert "Standard input is empty" in capsys.readouterr().err
    assert main(["run", "targett", "--home", str(server.home), "x"]) == 2
    assert "Did you mean: omlx-demo/target?" in capsys.readouterr().err


def test_a_conversation_remembers_and_forgets(client: Client) -> None:
    conversation = Conversation(client, TARGET, "Be brief.")
    first = "".join(piece.text for piece in conversation.ask("Count to 20."))
    assert [message["content"] for message in conversation.messages] == ["Count to 20.", first]
    conversation.clear()
    assert conversation.messages == []


def test_a_stopped_answer_stays_and_a_refused_question_does_not(client: Client) -> None:
    conversation = Conversation(client, TARGET)
    pieces = conversation.ask(QUESTION)
    begun = next(piece.text for piece in pieces if piece.text)
    pieces.close()
    assert conversation.messages[-1]["content"].endswith(begun)
    conversation = Conversation(client, "none")
    with pytest.raises(ConfigError, match="not found"):
        list(conversation.ask(QUESTION))
    assert conversation.messages == []


def test_files_go_with_the_next_question_alone(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    conversation = Conversation(client, TARGET)
    conversation.attach(attachment(tmp_path / "a.py", image=False))
    list(conversation.ask("What is x?"))
    list(conversation.ask("And now?"))
    first, _, second, _ = (message["content"] for message in conversation.messages)
    assert [part["type"] for part in first] == ["file", "text"]
    assert second == "And now?"


def test_files_that_cannot_go_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"none\.txt cannot be read"):
        attachment(tmp_path / "none.txt", image=False)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(BadRequest, match="not a picture"):
        attachment(tmp_path / "a.txt", image=True)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(BadRequest, match="larger than 16 MB"):
        attachment(tmp_path / "large", image=False)


def test_blocks_are_complete_once_nothing_can_change_them() -> None:
    text = "One\n\nTwo\n\n```\na\n\nb\n```\n\n- x\n\n- y\n\nend"
    ends = [complete_blocks(text[:length]) for length in range(len(text) + 1)]
    assert [text[:end] for end in sorted(set(ends))] == [
        "",
        "One\n\n",
        "One\n\nTwo\n\n",
        text.removesuffix("end"),
    ]


def test_an_answer_is_drawn_once_whatever_its_pieces() -> None:
    text = "# Title\n\nSome **bold** words.\n\n```python\nx = 1\n```\n\n1. one\n2. two\n"

    def drawn(size: int) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=60, height=20, color_system=None)
        with Screen(console).answer() as answer:
            for at in range(0, len(text), size):
                answer.feed(Piece(text[at : at + size]))
        return file.getvalue()

    whole = drawn(len(text))
    for words in ("Title", "bold", "x = 1", "2", "two"):
        assert words in whole
    assert "**" not in whole
    for size in (1, 7, 30):
        assert _visible(drawn(size)) == _visible(whole)


def _visible(written: str) -> list[str]:
    """Return the lines on a screen without a height after what was written."""
    lines, at = [""], 0
    for part in _PARTS.split(written):
        if part == "\n":
            at += 1
            if at == len(lines):
                lines.append("")
        elif part == "\r":
            pass
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part == "\x1b[1A":
            at -= 1
        elif not part.startswith("\x1b"):
            lines[at] += part
    return [line.rstrip() for line in lines if line.strip()]


def test_reasoning_and_warnings_are_set_apart() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, color_system="standard")
    with Screen(console).answer() as answer:
        answer.feed(Piece(thought="hmm \x1b[2J"))
        answer.feed(Piece("yes", warnings=("a note",), cut=True))
    written = file.getvalue()
    assert "\x1b[2;3mhmm \\x1b[2J" in written
    assert "omlx: a note" in written
    assert "maximum number of tokens" in written


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert escaped_lines("a\n\tb\x1b]0;x\x07\u202e") == "a\n\tb\\x1b]0;x\\x07\\u202e"
    family = "\U0001f468\u200d\U0001f469"
    assert escaped_lines(family) == family


def test_a_chat_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C stops the answer alone; the server started for the chat ends with the chat."""
    shutil.copytree(BUNDLED / TARGET, tmp_path / ".omlx/models/m")
    environ = environment(tmp_path, OMLX_PORT="0", TERM="xterm", COLUMNS="80")
    environ.pop("NO_COLOR", None)
    with terminal(environ, "run", "m") as screen:
        screen.wait_for("Chat with m")
        screen.wait_for(">>> ")
        screen.type("/help\n")
        screen.wait_for("/clear")
        screen.wait_for(">>> ")
        screen.type("/nonsense\n")
        screen.wait_for("There is no command /nonsense")
        screen.wait_for(">>> ")
        screen.interrupt_question(">>> ")
        screen.type("Hello\n")
        screen.wait_for(">>> ")
        screen.type("\x04")
        assert screen.end() == 0
    assert "Traceback" not in screen.text
    history = tmp_path / ".omlx/run_history"
    assert "Hello" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / ".omlx/server.json").exists()
