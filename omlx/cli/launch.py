"""`omlx launch AGENT …`: start a coding agent that uses a model of this server.

The agent gets address, model, context length and key in its environment or in its own configuration
file. Without a running server, a new server runs until the agent ends.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import quote, urlsplit

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.serve.address import find_server
from omlx.clients.agents import AGENTS, NO_KEY, Agent, Endpoint
from omlx.errors import ConfigError
from omlx.settings.schema import Settings, table

LOG: Final = "launch.log"
"""Log, in the home folder, of a server started for an agent."""

_START_S: Final = 120
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 30


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", metavar="ID", help=sentence("cli.launch.model", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)
    parser.add_argument("agent", choices=sorted(AGENTS), help=sentence("cli.launch.agent", {}))
    parser.add_argument(
        "given", metavar="…", nargs=argparse.REMAINDER, help=sentence("cli.launch.given", {})
    )


def run(arguments: Namespace) -> int:
    agent = AGENTS[arguments.agent]
    program = shutil.which(agent.program)
    if program is None:
        raise ConfigError("launch.not_installed", name=agent.name, command=agent.install)
    settings = configured(arguments).current.resolve().settings
    with _server(settings.home, arguments.model) as address:
        endpoint = _endpoint(address, arguments.model, settings)
        _say_what_is_used(agent, endpoint)
        return _run(agent, program, endpoint, settings.api_key or NO_KEY, arguments.given)


def _run(agent: Agent, program: str, endpoint: Endpoint, key: str, given: list[str]) -> int:
    start = agent.start(endpoint, key)
    with tempfile.TemporaryDirectory(prefix="omlx-") as folder, _interrupts_are_the_agents():
        arguments, variables = start.write(Path(folder))
        command = [program, *arguments, *given]
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


@contextmanager
def _interrupts_are_the_agents() -> Iterator[None]:
    """Ignore Ctrl-C, which reaches all processes of a terminal, and leave it to the agent."""

    def ignore(number: int, frame: FrameType | None) -> None:
        pass  # a handler: the agent would inherit SIG_IGN

    before = signal.signal(signal.SIGINT, ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _server(home: Path, model: str | None) -> Iterator[str]:
    """Yield the address of the home folder's server; start a server for the block if none runs.

    Raises ConfigError if the start fails.
    """
    address = find_server(home)
    if address is not None:
        yield address
        return
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "omlx", "serve", *filter(None, [model]), "--home", str(home)]
    with (home / LOG).open("wb") as log:
        # A session of its own: Ctrl-C is the agent's.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    sys.stderr.write(sentence("cli.launch.starting", {"log": str(home / LOG)}) + "\n")
    try:
        yield _wait_for(server, home)
    finally:
        server.terminate()
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], home: Path) -> str:
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        address = find_server(home)
        if address is not None:
            return address
        time.sleep(_POLL_S)  # until it accepts requests
    raise ConfigError("launch.no_server", log=str(home / LOG))


def _endpoint(address: str, model: str | None, settings: Settings) -> Endpoint:
    """Return a model's endpoint: by default of the loaded, the default, or the first model."""
    with_key = settings.api_key is not None
    if model is None:
        models = _get(address, "/v1/models", settings.api_key)["data"]
        if not models:
            raise ConfigError("launch.no_models")
        names = [entry["id"] for entry in models if entry["loaded"]]
        model = next(filter(None, [*names, settings.default_model, models[0]["id"]]))
    card = _get(address, f"/v1/models/{quote(model)}", settings.api_key)
    return Endpoint(address, card["id"], card["context_length"], with_key)


def _say_what_is_used(agent: Agent, endpoint: Endpoint) -> None:
    """Report the model, with a warning if the context is too short for the agent."""
    tokens = endpoint.context_length
    sys.stderr.write(sentence("cli.launch.using", {"model": endpoint.model, "tokens": tokens}))
    if agent.lacks_context(tokens):
        lengths = {"tokens": f"{tokens:,}", "least": f"{agent.least_context:,}"}
        warning = sentence("launch.short_context", {"name": agent.name, **lengths})
        sys.stderr.write(f"\n{warning}")
    sys.stderr.write("\n")


def _get(address: str, path: str, key: str | None) -> Mapping[str, Any]:
    """Request `path` from the server. Raises ConfigError with the server's message."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        record: Mapping[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ConfigError("launch.server", url=address, detail=str(error)) from error
    finally:
        connection.close()
    if response.status != 200:
        raise ConfigError("launch.server", url=address, detail=record["error"]["message"])
    return record
