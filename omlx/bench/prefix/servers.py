"""Servers under test: processes on a port of the loopback, asked as clients ask them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Message = dict[str, str]

START_S: Final = 180
ANSWER_S: Final = 600


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` until all of it was there; `computed` tokens of the `prompt` were not found in a cache."""

    text: str
    seconds: float
    prompt: int
    computed: int


@dataclass(frozen=True, slots=True)
class Server:
    """One that answers on `port`."""

    name: str
    port: int
    model: str

    def ask(self, messages: Sequence[Message], max_tokens: int) -> Answer:
        body = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        started = time.perf_counter()
        told = _call(self.port, "POST", "/v1/chat/completions", body)
        seconds = time.perf_counter() - started
        usage = told["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        text = told["choices"][0]["message"].get("content") or ""
        return Answer(text, seconds, usage["prompt_tokens"], usage["prompt_tokens"] - cached)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a prompt, where the server tells."""
        found: list[int] = _call(self.port, "POST", "/tokenize", {"messages": list(messages)})[
            "tokens"
        ]
        return found


@contextmanager
def omlx_server(folder: Path, home: Path, *flags: str) -> Iterator[Server]:
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "omlx",
        "serve",
        str(folder.resolve()),
        "--port",
        str(port),
        "--speculation",
        "off",
    ]
    with _running([*command, "--home", str(home), *flags], port):
        yield Server("omlx", port, folder.name)


@contextmanager
def mlx_lm_server(folder: Path) -> Iterator[Server]:
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "mlx_lm",
        "server",
        "--model",
        str(folder),
        "--port",
        str(port),
    ]
    with _running([*command, "--host", "127.0.0.1"], port):
        yield Server("mlx-lm", port, str(folder))


@contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[None]:
    """Raises RuntimeError if the process ends or does not answer in time."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdout=quiet, stderr=quiet, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    ) as process:
        try:
            _wait(process, port)
            yield
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"a server ended with {process.returncode} before it answered: {process.args!r}"
            )
        with suppress(OSError):
            _call(port, "GET", "/health")
            return
        time.sleep(0.2)
    raise RuntimeError(f"nobody answers on port {port} after {START_S} s")


def _call(port: int, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        told = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {told[:400]!r}")
        return json.loads(told)
    finally:
        connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
