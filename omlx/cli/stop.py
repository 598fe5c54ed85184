"""`omlx stop [MODEL]`: unload a model, or end the server once its requests are answered."""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.client import Client
from omlx.cli.serve.address import Running, find_servers, running
from omlx.errors import ConfigError
from omlx.settings.schema import table

_POLL_S: Final = 0.1


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.stop.model", {}))
    parser.add_argument("--port", metavar="N", type=int, help=sentence("cli.stop.port", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    settings = configured(_without_port(arguments)).current.resolve().settings
    servers = find_servers(settings.home)
    if not servers:
        raise ConfigError("config.not_running", home=str(settings.home))
    server = _chosen(servers, arguments.port)
    if arguments.model is None:
        _end(server, settings.home)
        return 0
    client = Client(server.url, settings.api_key)
    card = client.model(arguments.model)
    client.post(f"/v1/models/{quote(card['id'])}/unload")
    sys.stdout.write(sentence("cli.stop.unloaded", {"model": card["id"]}) + "\n")
    return 0


def _without_port(arguments: Namespace) -> Namespace:
    """Return the arguments without `--port`, which chooses a server and sets nothing."""
    return Namespace(**{name: value for name, value in vars(arguments).items() if name != "port"})


def _chosen(servers: Sequence[Running], port: int | None) -> Running:
    """Return the server on `port`, or the only one. Raises ConfigError."""
    fitting = [server for server in servers if port in (None, urlsplit(server.url).port)]
    if len(fitting) != 1:
        urls = ", ".join(server.url for server in servers)
        raise ConfigError("stop.several", urls=urls)
    return fitting[0]


def _end(server: Running, home: Path) -> None:
    """End a server as Ctrl-C does, and wait until the entry in `home` is gone."""
    with suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    sys.stdout.write(sentence("cli.stop.ending", {"url": server.url}) + "\n")
    sys.stdout.flush()
    while server in running(home):  # bounded by the server's own deadline
        time.sleep(_POLL_S)  # another process has no event to wait for
