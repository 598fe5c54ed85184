"""`omlx` on a terminal of its own: what it writes, what a person types, Ctrl-C included."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

CTRL_C = "\x03"
PATIENCE_S = 120

# The terminal controls the process, so that Ctrl-C becomes a signal; where tests run in the
# background of a shell it would be ignored.
_START = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "omlx", *sys.argv[1:]])
"""


class Terminal:
    """`text` is all that has been written, with what was typed."""

    def __init__(self, screen: int, process: subprocess.Popen[bytes]) -> None:
        self._screen = screen
        self.process = process
        self.text = ""
        self._heard = 0

    def wait_for(self, words: str, patience_s: float = PATIENCE_S) -> str:
        """Return what is written until `words` appear after the last ones waited for."""
        begin, deadline = self._heard, time.monotonic() + patience_s
        while words not in self.text[begin:]:
            piece = self._read(deadline)
            assert piece, self.text
            self.text += piece
        self._heard = self.text.index(words, begin) + len(words)
        return self.text[begin : self._heard]

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt_question(self, words: str) -> None:
        """Press Ctrl-C until `words` appear.

        CPython's `input` misses one that comes after it has asked and before it reads.
        """
        for _ in range(PATIENCE_S // 5):
            self.type(CTRL_C)
            with suppress(TimeoutError):
                self.wait_for(words, 5)
                return
        raise TimeoutError(self.text)

    def interrupt(self) -> int:
        """Press Ctrl-C until the process has ended, and return its exit status."""
        for _ in range(PATIENCE_S // 5):
            self.type(CTRL_C)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
                break
        return self.end()

    def end(self) -> int:
        """Return the exit status, once everything has been read."""
        deadline = time.monotonic() + PATIENCE_S
        while piece := self._read(deadline):
            self.text += piece
        return self.process.wait(PATIENCE_S)

    def _read(self, deadline: float) -> str:
        """Wait for what is written; nothing once the last process has closed the terminal."""
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([self._screen], [], [], left)
        if not ready:
            raise TimeoutError(self.text)
        try:
            return os.read(self._screen, 1 << 16).decode(errors="replace")
        except OSError:
            return ""


@contextmanager
def terminal(environ: Mapping[str, str], *arguments: str) -> Iterator[Terminal]:
    """Run `omlx` with the arguments; it is killed at the end."""
    screen, keyboard = os.openpty()
    termios.tcsetwinsize(screen, (24, 100))  # of none, progress bars draw nothing
    process = subprocess.Popen(
        [sys.executable, "-c", _START, *arguments],
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
        env=environ,
    )
    os.close(keyboard)
    try:
        yield Terminal(screen, process)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
