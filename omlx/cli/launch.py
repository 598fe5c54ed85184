"""`omlx launch AGENT …`: start a coding agent that uses a model of this server.

The agent gets address, model, context length and key in its environment or in its own configuration
file. Without a running server, a new server runs until the agent ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.client import Client, server_for
from omlx.clients.agents import AGENTS, NO_KEY, Agent, Endpoint
from omlx.errors import ConfigError
from omlx.settings.schema import Settings, table


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
    with server_for(settings.home, arguments.model) as address:
        endpoint = _endpoint(Client(address, settings.api_key), arguments.model, settings)
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


def _endpoint(client: Client, model: str | None, settings: Settings) -> Endpoint:
    """Return a model's endpoint: by default of the loaded, the default, or the first model."""
    with_key = settings.api_key is not None
    if model is None:
        models = client.get("/v1/models")["data"]
        if not models:
            raise ConfigError("launch.no_models")
        names = [entry["id"] for entry in models if entry["loaded"]]
        model = next(filter(None, [*names, settings.default_model, models[0]["id"]]))
    card = client.model(model)
    return Endpoint(client.address, card["id"], card["context_length"], with_key)


def _say_what_is_used(agent: Agent, endpoint: Endpoint) -> None:
    """Report the model, with a warning if the context is too short for the agent."""
    tokens = endpoint.context_length
    sys.stderr.write(sentence("cli.launch.using", {"model": endpoint.model, "tokens": tokens}))
    if agent.lacks_context(tokens):
        lengths = {"tokens": f"{tokens:,}", "least": f"{agent.least_context:,}"}
        warning = sentence("launch.short_context", {"name": agent.name, **lengths})
        sys.stderr.write(f"\n{warning}")
    sys.stderr.write("\n")
