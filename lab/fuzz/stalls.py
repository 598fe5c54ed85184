"""Send stalling requests to a server, and measure what another client notices.

python -m lab.fuzz.stalls [--only TEXT] [--words N]

The server is a process of its own. While a stalling request is answered, another client asks for
/health and for a token of the same model, again and again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Final

import httpx

from lab.fuzz.stalling_requests import CHAT, TEMPLATES, StallingRequest, stalling_requests
from omlx.cli.main import run_process
from omlx.machine import footprint
from omlx.models.catalog.discovery import BUNDLED
from tests.cli.serving import Serving, serving

GOOD: Final = "good"
WORDS: Final = "rain cat reads table numbers path returns name tags file other again".split()
PROMPT_WORDS: Final = 400
"""Words of the other client's prompt, new ones each time: an agent's turn, of some 800 tokens."""

PATIENCE_S: Final = 120
PREFIX_BYTES: Final = "8MB"
"""The prefixes of the other client fill them before anything is measured; else they would count as
memory that a stalling request has left."""
SETTLE_S: Final = 1.5
"""Before memory is measured: idle memory is returned within it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a stalling request cost. Times in seconds of the other client, the longest ones; `cpu_s`
    of the server and its processes; `grown` in bytes that it did not give back."""

    name: str
    status: int | None
    code: str
    seconds: float
    cpu_s: float
    health_s: float
    first_token_s: float
    grown: int


class Target:
    """A running server as another client sees it."""

    def __init__(self, server: Serving, prompt_words: int = 1) -> None:
        self._url = server.url
        self._prompt_words = prompt_words
        self._words = Random(0)
        self._pid = server.process.pid
        self.client = httpx.Client(base_url=server.url, timeout=PATIENCE_S)
        self.first_token_s()  # loads the model, and starts the process that renders templates
        self.alone_s = statistics.median(self.first_token_s() for _ in range(9))
        self._first = self._memory()

    @property
    def kept(self) -> int:
        """Bytes that the server uses more than with the model loaded."""
        return self._memory() - self._first

    def first_token_s(self) -> float:
        content = " ".join(self._words.choices(WORDS, k=self._prompt_words))
        messages = [{"role": "user", "content": content}]
        body = {"model": GOOD, "messages": messages, "max_tokens": 1, "stream": True}
        start = monotonic()
        with self.client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            answer.read()  # the answer is one token; its first line may only keep it alive
            return monotonic() - start

    def health_s(self) -> float:
        start = monotonic()
        assert self.client.get("/health").status_code == 200
        return monotonic() - start

    def measure(self, request: StallingRequest, settle_s: float = SETTLE_S) -> Measured:
        content = request.content()
        before, cpu_s, start = self._memory(), self._cpu_s(), monotonic()
        health, tokens = [], []
        with ThreadPoolExecutor(1) as other:
            sent = other.submit(self._send, request.path, content)
            while not sent.done() or len(tokens) < 2:
                health.append(self.health_s())
                tokens.append(self.first_token_s())
            status, code = sent.result()
        seconds, cpu_s = monotonic() - start, self._cpu_s() - cpu_s
        sleep(settle_s)  # the server returns memory after the request
        return Measured(
            request.name,
            status,
            code,
            seconds,
            cpu_s,
            max(health),
            max(tokens),
            self._memory() - before,
        )

    def _send(self, path: str, content: bytes) -> tuple[int | None, str]:
        try:
            answer = httpx.post(
                self._url + path,
                content=content,
                timeout=PATIENCE_S,
                headers={"Content-Type": "application/json"},
            )
        except httpx.TransportError:  # refused before it was read to its end
            return None, ""
        error = answer.json().get("error") if answer.status_code >= 400 else None
        return answer.status_code, str(error["code"]) if error else ""

    def _memory(self) -> int:
        return sum(map(footprint, self._processes()))

    def _cpu_s(self) -> float:
        """CPU time of the server and of its children, those that have ended too; 0 where the system
        does not say."""
        if sys.platform != "linux":
            return 0.0
        ticks = 0
        for pid in self._processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _processes(self) -> list[int]:
        children = Path(f"/proc/{self._pid}/task").glob("*/children")
        return [self._pid, *(int(pid) for path in children for pid in path.read_text().split())]


@contextmanager
def attacked(prompt_words: int = 1) -> Iterator[Target]:
    """A server with one good model and one for each stalling template."""
    with tempfile.TemporaryDirectory() as folder:
        home, models = Path(folder, "home"), Path(folder, "models")
        home.mkdir()
        source = BUNDLED / "omlx-demo/target"
        shutil.copytree(source, models / GOOD)
        for name, template in TEMPLATES.items():
            shutil.copytree(source, models / name)
            (models / name / "chat_template.jinja").write_text(template)
        with serving(home, "--model-dir", str(models), "--prefix-bytes", PREFIX_BYTES) as server:
            target = Target(server, prompt_words)
            with closing(target.client):
                yield target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.fuzz.stalls")
    parser.add_argument("--only", default="", help="requests whose name contains this")
    parser.add_argument("--words", type=int, default=PROMPT_WORDS, help="of the other's prompt")
    arguments = parser.parse_args()
    only = arguments.only
    with attacked(arguments.words) as target:
        print(f"alone: first token after {target.alone_s:.3f} s")  # noqa: T201
        print("| request | answer | s | CPU s | /health s | first token s | MiB kept |")  # noqa: T201
        print("|---|---|---|---|---|---|---|")  # noqa: T201
        for request in stalling_requests(GOOD):
            if only in request.name:
                row = target.measure(request)
                figures = (row.seconds, row.cpu_s, row.health_s, row.first_token_s)
                shown = " | ".join(f"{figure:.2f}" for figure in figures)
                kept = f"{row.grown / 2**20:.0f}"
                answer = f"{row.status} {row.code}".strip()
                print(f"| {row.name} | {answer} | {shown} | {kept} |", flush=True)  # noqa: T201
        print(f"kept in all: {target.kept / 2**20:.0f} MiB", flush=True)  # noqa: T201


if __name__ == "__main__":
    run_process(main)
