"""Keyboard of the chat: lines with history and completion of paths, by readline."""

from __future__ import annotations

import glob
import os
import readline
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

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
