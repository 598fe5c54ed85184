"""Terminal of the chat: questions by readline; answers as Markdown while they stream, by rich.

Blocks of Markdown are printed once they are complete; the block in progress is drawn again with
each piece. Where standard output is no terminal, the text is written as it comes.
"""

from __future__ import annotations

import glob
import os
import re
import readline
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import SegmentLines
from rich.text import Text

from omlx.catalog import escaped_lines, sentence
from omlx.cli.output import BOLD, has_colours

HISTORY: Final = "run_history"
"""File, in the home folder, of questions typed before; readable by its owner alone."""

COMMANDS: Final = ("/help", "/clear", "/file ", "/image ", "/exit")
_KEPT: Final = 1000
_MORE: Final = '"""'
"""Mark at both ends of a question with several lines."""


class Keyboard:
    """Reads questions inside a `with` block, which keeps the history."""

    def __init__(self, home: Path) -> None:
        self._path = home / HISTORY

    def __enter__(self) -> Keyboard:
        readline.clear_history()
        with suppress(OSError):  # none yet, or of another line editor
            readline.read_history_file(self._path)
        readline.set_history_length(_KEPT)
        readline.set_completer_delims(" ")
        readline.set_completer(_completed)
        editline = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if editline else "tab: complete")
        return self

    def __exit__(self, *raised: object) -> None:
        readline.set_completer(None)
        with suppress(OSError):  # a full disk loses the history alone
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(self._path)

    def read(self) -> str | None:
        """Return the next question; None at the end of input. Ctrl-C discards the line."""
        while True:
            try:
                text = input(_prompt(">>> "))
                if not text.startswith(_MORE):
                    return text
                while not text.endswith(_MORE) or len(text) < 2 * len(_MORE):
                    text += "\n" + input(_prompt("... "))
                return text[len(_MORE) : -len(_MORE)].strip()
            except KeyboardInterrupt:
                sys.stdout.write("\n")
            except EOFError:
                sys.stdout.write("\n")
                return None


def _prompt(text: str) -> str:
    # readline does not count what is between \1 and \2.
    return f"\1\x1b[{BOLD}m\2{text}\1\x1b[0m\2" if has_colours() else text


def _completed(text: str, state: int) -> str | None:
    """Return the completion number `state` of the word before the cursor."""
    begun = readline.get_line_buffer()[: readline.get_begidx()]
    found: list[str] = []
    if not begun.strip():
        found = [command for command in COMMANDS if command.startswith(text)]
    elif begun.split()[0] in ("/file", "/image"):
        paths = glob.glob(glob.escape(os.path.expanduser(text)) + "*")
        found = sorted(f"{path}/" if os.path.isdir(path) else path for path in paths)
    return found[state] if state < len(found) else None


_REDRAW_S: Final = 0.08
_THEME: Final = "ansi_dark"  # the terminal's own colours
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_LIST: Final = re.compile(r"[-*+>|]|\d+[.)]|\s")
"""Beginning of a line in the block above, perhaps."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an answer; `thought` is reasoning, `warnings` are sentences about the request."""

    text: str = ""
    thought: str = ""
    warnings: tuple[str, ...] = ()
    cut: bool = False  # ended by the maximum number of tokens


Answer: TypeAlias = "_Plain | _Drawn"


class Screen:
    """Terminal, or a file. Notes and errors go to standard error where output is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._notes = self._console
        if not self._console.is_terminal:
            self._notes = Console(stderr=True, highlight=False)

    def note(self, code: str, **params: str) -> None:
        self._notes.print(Text(sentence(code, params), style="dim"))

    def error(self, message: str) -> None:
        self._notes.print(Text(f"omlx: {escaped_lines(message)}", style="red"))

    @contextmanager
    def answer(self) -> Iterator[Answer]:
        """Yield a place for the pieces of an answer, complete after the block."""
        if not self._console.is_terminal:
            yield _Plain(self)
            sys.stdout.write("\n")
            return
        drawn = _Drawn(self._console, self)
        with _without_echo():
            try:
                yield drawn
            except KeyboardInterrupt:
                drawn.finish()
                self.note("cli.run.stopped")
                raise
            finally:
                drawn.finish()


@contextmanager
def _without_echo() -> Iterator[None]:
    """Turn off echo during an answer: keys typed meanwhile go to the next question."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(keyboard, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


class _Plain:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def feed(self, piece: Piece) -> None:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
        _note_all(piece, self._screen)


class _Drawn:
    def __init__(self, console: Console, screen: Screen) -> None:
        self._console = console
        self._screen = screen
        self._text = ""
        self._thinks = False
        self._drawn_at = 0.0
        self._waiting = console.status(Text(sentence("cli.run.waiting", {}), style="dim"))
        self._waiting.start()
        self._live = Live(console=console, transient=True, auto_refresh=False)

    def feed(self, piece: Piece) -> None:
        if piece.text or piece.thought:
            self._waiting.stop()
        if piece.thought:
            self._thinks = True
            thought = Text(escaped_lines(piece.thought), style="dim italic")
            self._console.print(thought, end="", soft_wrap=True)
        if piece.text:
            self._begin()
            self._text += escaped_lines(piece.text)
            end = complete_blocks(self._text)
            if end:
                self._print(self._text[:end])
                self._text = self._text[end:]
            self._draw()
        _note_all(piece, self._screen)

    def finish(self) -> None:
        """Print the rest, once."""
        self._waiting.stop()
        self._live.stop()
        if self._text.strip():
            self._print(self._text)
        self._text = ""

    def _begin(self) -> None:
        if self._thinks:
            self._console.print("\n")
            self._thinks = False
        if not self._live.is_started:
            self._live.start()

    def _print(self, text: str) -> None:
        self._live.update("")
        self._console.print(_markdown(text))

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        lines = self._console.render_lines(_markdown(self._text), pad=False)
        # The end alone, if the block is higher than the screen.
        shown = lines[-max(self._console.height - 2, 1) :]
        self._live.update(SegmentLines(shown, new_lines=True), refresh=True)


def _markdown(text: str) -> Markdown:
    # Without hyperlinks: a terminal would hide the address behind any text.
    return Markdown(text, code_theme=_THEME, hyperlinks=False)


def _note_all(piece: Piece, screen: Screen) -> None:
    for warning in piece.warnings:
        screen.error(warning)
    if piece.cut:
        screen.note("cli.run.cut")


def complete_blocks(text: str) -> int:
    """Return the end of the complete blocks of Markdown; 0 without any."""
    end = at = 0
    fence, blank = "", False
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if blank and not fence and line.strip() and not _LIST.match(line):
            end = at
        if mark is not None:
            fence = "" if fence == mark[1] else fence or mark[1]
        blank = not line.strip()
        at += len(line)
    return end
