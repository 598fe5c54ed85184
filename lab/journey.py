"""`python -m lab.journey`: files, calls and callees of one chat answer, token and drafting round.

A server runs on the main thread with a profiler on every thread; a client thread sends the same
chat with answers of two lengths, so that what a request costs once cancels out. Counts do not
depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

from lab.bench.http.server import call, free_port
from omlx.cli.main import main as run_omlx
from omlx.cli.main import run_process
from omlx.models.catalog.discovery import BUNDLED

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = (str(ROOT / "omlx"), str(ROOT / "admin"))
ENGINE_THREAD: Final = "omlx-engine"
SHORT, LONG = 24, 88
"""Tokens of the two answers."""
DRAFT_LENGTH: Final = 4
START_S: Final = 180.0


class Journey:
    """Counts calls of the product's functions by code object, and changes of file, by thread."""

    def __init__(self) -> None:
        self.recording = False
        self.calls: dict[str, Counter[CodeType]] = {}
        self.changes: Counter[str] = Counter()
        self._files: dict[str, str] = {}
        self._ours: dict[str, bool] = {}

    def hook(self, frame: FrameType, event: str, _argument: object) -> None:
        """Profile function of every thread (`sys.setprofile`)."""
        if not self.recording or event != "call":
            return
        code = frame.f_code
        file = code.co_filename
        ours = self._ours.get(file)
        if ours is None:
            ours = self._ours[file] = file.startswith(PRODUCT)
        if not ours:
            return
        thread = threading.current_thread().name
        self.calls.setdefault(thread, Counter())[code] += 1
        if self._files.get(thread) != file:
            self._files[thread] = file
            self.changes[thread] += 1

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Count from zero while the block runs."""
        self.calls, self.changes = {}, Counter()
        self.recording = True
        try:
            yield
        finally:
            self.recording = False


Counts = tuple[Counter[CodeType], int, int]
"""Calls on the engine thread by function, its changes of file, and drafting rounds."""


class Client(threading.Thread):
    """Sends the chats, prints what they cost, and ends the server."""

    def __init__(self, journey: Journey, port: int, model: str, drafts: bool, top: int) -> None:
        super().__init__(daemon=True)
        self._journey, self._port, self._model = journey, port, model
        self._drafts, self._top = drafts, top

    def run(self) -> None:
        try:
            self._wait()
            for speculation in ("off", *(["draft"] if self._drafts else [])):
                self._chat(SHORT, speculation)  # the first one compiles and imports
            self._answer()
            self._steps("plain token", "off")
            if self._drafts:
                self._steps(f"drafting round of {DRAFT_LENGTH}", "draft")
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with suppress(OSError):
                call(self._port, "GET", "/health")
                return
            time.sleep(0.2)  # a server that starts has no event
        raise RuntimeError(f"no server answers on port {self._port}")

    def _chat(self, tokens: int, speculation: str) -> Any:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"Count the stars. {time.monotonic_ns()}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "speculation": speculation,
            "num_draft_tokens": DRAFT_LENGTH,
        }
        return call(self._port, "POST", "/v1/chat/completions", body)

    def _answer(self) -> None:
        """Print the files and calls of one answer, by thread."""
        with self._journey.recorded():
            self._chat(SHORT, "off")
            time.sleep(0.2)  # what the server does behind the answer
        calls = self._journey.calls
        files = {code.co_filename for counts in calls.values() for code in counts}
        packages = {str(Path(file).parent) for file in files}
        say(f"\nchat answer of {SHORT} tokens: {len(files)} files in {len(packages)} packages\n")
        say("| thread | files | changes of file | calls |")
        say("|---|---|---|---|")
        for thread, counts in sorted(calls.items()):
            own = {code.co_filename for code in counts}
            say(f"| {thread} | {len(own)} | {self._journey.changes[thread]} | {counts.total()} |")

    def _steps(self, what: str, speculation: str) -> None:
        """Print the calls on the engine thread of one step in steady state."""
        short, few, rounds = self._counts(SHORT, speculation)
        long, many, more = self._counts(LONG, speculation)
        steps = more - rounds if speculation == "draft" else LONG - SHORT
        calls = {code: (n - short[code]) / steps for code, n in long.items() if n > short[code]}
        changes = (many - few) / steps
        say(f"\n{what}: {sum(calls.values()):.0f} calls, {changes:.0f} changes of file, ", end="")
        say(f"{len({code.co_filename for code in calls})} files\n")
        say("| calls | function | |")
        say("|---|---|---|")
        for code, n in sorted(calls.items(), key=lambda item: -item[1])[: self._top]:
            place = Path(code.co_filename).relative_to(ROOT)
            say(f"| {n:.2f} | {code.co_qualname} | {place}:{code.co_firstlineno} |")

    def _counts(self, tokens: int, speculation: str) -> Counts:
        with self._journey.recorded():
            answer = self._chat(tokens, speculation)
        drafters = answer["timings"]["drafters"].values()
        rounds = sum(drafter["rounds"] for drafter in drafters)
        calls = self._journey.calls.get(ENGINE_THREAD, Counter())
        return calls, self._journey.changes[ENGINE_THREAD], rounds


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def main() -> int:
    demo = BUNDLED / "omlx-demo"
    parser = argparse.ArgumentParser(prog="python -m lab.journey", description=__doc__)
    parser.add_argument("--model", type=Path, default=demo / "target")
    parser.add_argument("--draft", type=Path, default=demo / "draft")
    parser.add_argument("--top", type=int, default=40, help="functions to list of each step")
    arguments = parser.parse_args()
    journey, port = Journey(), free_port()
    client = Client(journey, port, arguments.model.name, arguments.draft.is_dir(), arguments.top)
    client.start()
    threading.setprofile(journey.hook)
    sys.setprofile(journey.hook)
    with TemporaryDirectory() as home:
        command = ["serve", str(arguments.model), "--home", home, "--port", str(port)]
        command += ["--draft-model", str(arguments.draft)] if arguments.draft.is_dir() else []
        return run_omlx([*command, "--no-calibrate"])


if __name__ == "__main__":
    run_process(main)
