"""Clients of a server whose device fails at random points, and that is started again where it ends.

python -m lab.soak.faults --minutes 10

Requests have an `Idempotency-Key`, or are stored responses; a client whose server has gone repeats
its request to the next one, as SDKs do. Every answer must be complete and equal to the one of an
undisturbed server, or refused with a code of the device. Exit status 1 if one is not.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from omlx.cli.main import run_process
from tests.processes import environment
from tests.server.running import DRAFT, TARGET

PATIENCE_S: Final = 60.0
STATUS_LOST: Final = 3
REFUSALS: Final = ("device.failed", "device.memory", "device.prompt_memory")
GONE: Final = ("device.lost", "engine.dead", "engine.stopped", "engine.hung", "model.unloaded")
"""Codes with which a server ends; its clients ask the next one."""


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """Paths and bodies of some short and long requests, warm and greedy."""
    shared: dict[str, Any] = {"model": TARGET, "seed": 7}
    said = ["Count to 20 please.", "Write a Python function that adds two numbers.", "Name rivers."]
    said.append(" ".join(f"Line {i}: the cat sat on mat {i * i}." for i in range(120)))
    asked: list[tuple[str, dict[str, Any]]] = []
    for i, text in enumerate(said):
        for temperature in (0.0, 0.8):
            messages = [{"role": "user", "content": text}]
            chat = {**shared, "messages": messages, "max_tokens": 60, "temperature": temperature}
            asked.append(("/v1/chat/completions", {**chat, "stream": i % 2 == 0}))
            stored = {"input": text, "max_output_tokens": 60, "temperature": temperature}
            asked.append(("/v1/responses", {**shared, **stored, "store": True}))
    return asked


def text_of(path: str, response: httpx.Response) -> tuple[str, str | None]:
    """What an answer says, and the code of its error."""
    content = response.read().decode()
    if response.headers["content-type"].startswith("text/event-stream"):
        chunks = [json.loads(line[6:]) for line in content.splitlines() if line[6:7] == "{"]
        error = next((chunk["error"]["code"] for chunk in chunks if "error" in chunk), None)
        if error is None and "[DONE]" not in content:
            raise httpx.ReadError("the stream was cut")
        parts = [c["choices"][0]["delta"] for c in chunks if c.get("choices")]
        return "".join(
            (part.get("content") or "") + (part.get("reasoning_content") or "") for part in parts
        ), error
    body = json.loads(content)
    if body.get("error"):
        return "", str(body["error"]["code"])
    if path == "/v1/responses":
        return json.dumps([item.get("content") for item in body["output"]]), None
    message = body["choices"][0]["message"]
    return (message.get("content") or "") + (message.get("reasoning_content") or ""), None


@dataclass
class Restarter:
    """Starts a server again whenever it ends with the status of a lost device.

    `faults` says what `lab.soak.failing` installs into the process of a number, from 0; None:
    nothing.
    """

    home: Path
    faults: Callable[[int], dict[str, Any] | None] = lambda number: None
    arguments: tuple[str, ...] = ()
    port: int = 0
    url: str = ""
    statuses: list[int] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    stopping: bool = False

    def run(self) -> None:
        since = 0.0
        for number in range(1000):
            self._start(self.faults(number))
            if since:
                self.away_s.append(time.monotonic() - since)
            assert self.process is not None
            self.statuses.append(self.process.wait())
            assert self.process.stdout is not None
            self.process.stdout.close()
            since = time.monotonic()
            if self.stopping or self.statuses[-1] != STATUS_LOST:
                return

    def stop(self) -> None:
        self.stopping = True
        if self.process is not None:
            self.process.terminate()

    def _start(self, faults: dict[str, Any] | None) -> None:
        order = {}
        if faults is not None:
            site = str(Path(__file__).parent / "device_site")
            root = str(Path(__file__).parents[2])
            order = {"OMLX_TEST_DEVICE": json.dumps(faults), "PYTHONPATH": f"{site}:{root}"}
        command = [sys.executable, "-m", "omlx", "serve", TARGET, "--draft-model", DRAFT]
        command += ["--port", str(self.port), "--home", str(self.home / "omlx"), *self.arguments]
        with (self.home / "stderr.txt").open("a") as log:
            self.process = subprocess.Popen(
                command,
                env=environment(self.home, OMLX_CALIBRATE="on", **order),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "http://" in line and not self.url:
                self.url = line.split()[-1].rstrip("/")
                self.port = int(self.url.rsplit(":", 1)[1])
            if "curl" in line:
                break


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, detail: str | None = None) -> None:
        with self.lock:
            self.counts[name] += 1
            if detail is not None:
                self.wrong.append(detail)


def ask(
    client: httpx.Client, url: str, path: str, body: dict[str, Any], key: str, tally: Tally
) -> tuple[str, str | None]:
    """Ask until a server answers to the end, or refuses. Raises TimeoutError if none does."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            headers = {"Idempotency-Key": key}
            with client.stream("POST", url + path, json=body, headers=headers) as response:
                text, code = text_of(path, response)
            if code is None or code in REFUSALS:
                return text, code
            if code not in GONE and response.status_code not in (409, 503):
                return text, code
            tally.add(f"asked again: {code}")
        except (httpx.TransportError, json.JSONDecodeError):
            tally.add("asked again: cut")
        time.sleep(0.2)
    raise TimeoutError(f"no answer to {path} within {PATIENCE_S} s: {dict(tally.counts)}")


def load(minutes: float, every: int, clients: int, folder: Path) -> int:
    asked = bodies()
    quiet = Restarter(folder / "quiet")
    failing = Restarter(folder / "failing", lambda number: {"every": every, "seed": number})
    for server in (quiet, failing):
        server.home.mkdir()
    wanted: list[str] = []
    tally = Tally()
    with supervised(quiet), httpx.Client(timeout=PATIENCE_S) as client:
        for i, (path, body) in enumerate(asked):
            text, code = ask(client, quiet.url, path, body, f"quiet {i}", tally)
            assert code is None, code
            wanted.append(text)
    until = time.monotonic() + 60 * minutes

    def work(number: int) -> None:
        chosen = random.Random(number)
        with httpx.Client(timeout=PATIENCE_S) as client:
            for count in range(100_000):
                if time.monotonic() > until:
                    return
                i = chosen.randrange(len(asked))
                path, body = asked[i]
                key = f"{number}-{count}"
                text, code = ask(client, failing.url, path, body, key, tally)
                if code is not None:
                    known = code in REFUSALS
                    tally.add(f"refused: {code}", None if known else f"{path} {code}")
                elif text == wanted[i]:
                    tally.add("equal")
                else:
                    tally.add("WRONG", f"{body}\n  want {wanted[i]!r}\n  got  {text!r}")

    with supervised(failing), ThreadPoolExecutor(clients) as threads:
        for done in [threads.submit(work, number) for number in range(clients)]:
            done.result()
        device = metrics(failing.url)
    print(dict(tally.counts))  # noqa: T201
    print("statuses", Counter(failing.statuses), "last process", device)  # noqa: T201
    away = sorted(failing.away_s)
    if away:
        middle = away[len(away) // 2]
        print(f"seconds until it served again: {middle:.1f} (at most {away[-1]:.1f})")  # noqa: T201
    for line in tally.wrong[:5]:
        print(line)  # noqa: T201
    return 1 if tally.wrong else 0


def metrics(url: str) -> list[str]:
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines()
    return [line for line in lines if line.startswith("omlx_device_errors_total")]


class supervised:
    """A server under its restarter while the block runs."""

    def __init__(self, server: Restarter) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self._server.url and httpx.get(f"{self._server.url}/health").status_code == 200:
                return
            time.sleep(0.2)
        raise TimeoutError((self._server.home / "stderr.txt").read_text()[-2000:])

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join(PATIENCE_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.soak.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=int, default=150, help="one use of a site in so many fails")
    parser.add_argument("--clients", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omlx-faults-") as folder:
        return load(arguments.minutes, arguments.every, arguments.clients, Path(folder))


if __name__ == "__main__":
    run_process(main)
