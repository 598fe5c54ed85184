"""Commands over servers of the home folder: `ps`, `stop`, `dashboard`, `launch`, `session`."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from omlx.admin.credentials import Credentials
from omlx.admin.web.formats import elapsed
from omlx.catalog import sentence
from omlx.cli import add_actions
from omlx.cli.arguments import configured
from omlx.cli.client import Client, handled, server_for
from omlx.cli.output import columns, memory_size, say, size
from omlx.cli.serve.address import Running, find_server, find_servers, running
from omlx.clients.agents import AGENTS, NO_KEY, Agent, Endpoint
from omlx.errors import ConfigError, os_errors
from omlx.settings.schema import Settings, table

_PS_COLUMNS: Final = ("model", "memory", "context", "requests", "idle")
_MEMORY: Final = "omlx_memory_bytes"


def ps_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=sentence("cli.ps.json", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def ps(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    servers = _running(settings.home)
    records = [_ps_record(Client(server.url, settings.api_key)) for server in servers]
    if arguments.json:
        json.dump(records, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("\n".join(map(_ps_text, records)))
    return 0


def _running(home: Path) -> Sequence[Running]:
    """Return the responsive servers of a home folder. Raises ConfigError without any."""
    servers = find_servers(home)
    if not servers:
        raise ConfigError("config.not_running", home=str(home))
    return servers


def _ps_record(client: Client) -> dict[str, Any]:
    """Return a server's address, memory in bytes, and its models in memory."""
    models = client.get("/v1/models")["data"]
    loaded = [card["id"] for card in models if card["loaded"] and "parent" not in card]
    families = text_string_to_metric_families(client.text("/metrics"))
    samples = [sample for family in families for sample in family.samples]
    memory = {one.labels["what"]: int(one.value) for one in samples if one.name == _MEMORY}
    return {
        "url": client.address,
        "used_bytes": memory["used"],
        "limit_bytes": memory["limit"],
        "models": [client.model(model) for model in loaded],
    }


def _ps_text(record: Mapping[str, Any]) -> str:
    memory = {name: memory_size(record[f"{name}_bytes"]) for name in ("used", "limit")}
    summary = sentence("cli.ps.server", {"url": record["url"], **memory})
    head = [sentence(f"cli.ps.column.{name}", {}) for name in _PS_COLUMNS]
    rows = columns([_ps_row(card) for card in record["models"]], head)
    return f"{summary}\n{rows or sentence('cli.ps.empty', {}) + chr(10)}"


def _ps_row(card: Mapping[str, Any]) -> tuple[str, ...]:
    requests, idle = str(card["active"]), ""
    if card["waiting"]:
        counts = {"active": card["active"], "waiting": card["waiting"]}
        requests = sentence("cli.ps.waiting", counts)
    if not card["active"] and card["idle_s"] is not None:
        idle = elapsed(card["idle_s"])
    memory, context = memory_size(card["weights_bytes"]), f"{card['context_length']:,}"
    return card["id"], memory, context, requests, idle


_POLL_S: Final = 0.1


def stop_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.stop.model", {}))
    parser.add_argument("--port", metavar="N", type=int, help=sentence("cli.stop.port", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def stop(arguments: Namespace) -> int:
    port = vars(arguments).pop("port")  # it chooses a server, and sets nothing
    settings = configured(arguments).current.resolve().settings
    server = _chosen(_running(settings.home), port)
    if arguments.model is None:
        _end(server, settings.home)
        return 0
    client = Client(server.url, settings.api_key)
    card = client.model(arguments.model)
    client.post(f"/v1/models/{quote(card['id'])}/unload")
    say("cli.stop.unloaded", model=card["id"])
    return 0


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
    say("cli.stop.ending", url=server.url)
    while server in running(home):  # bounded by the server's own deadline
        time.sleep(_POLL_S)  # another process has no event to wait for


def dashboard_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--print", dest="quiet", action="store_true", help=sentence("cli.dashboard.print", {})
    )
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def dashboard(arguments: Namespace) -> int:
    home = configured(arguments).current.resolve().settings.home
    address = find_server(home)
    if address is None:
        raise ConfigError("config.not_running", home=str(home))
    link = Credentials(home).link(address)
    if arguments.quiet or not has_browser() or not webbrowser.open(link):
        sys.stdout.write(f"{link}\n")
    else:
        say("cli.dashboard.opened", url=address)
    return 0


def has_browser() -> bool:
    """Return whether a browser window would open on the user's screen."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))


def launch_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", metavar="ID", help=sentence("cli.launch.model", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)
    parser.add_argument("agent", choices=sorted(AGENTS), help=sentence("cli.launch.agent", {}))
    parser.add_argument(
        "given", metavar="…", nargs=argparse.REMAINDER, help=sentence("cli.launch.given", {})
    )


def launch(arguments: Namespace) -> int:
    agent = AGENTS[arguments.agent]
    program = shutil.which(agent.program)
    if program is None:
        raise ConfigError("launch.not_installed", name=agent.name, command=agent.install)
    settings = configured(arguments).current.resolve().settings
    with server_for(settings.home, arguments.model) as address:
        endpoint = _endpoint(Client(address, settings.api_key), arguments.model, settings)
        _say_what_is_used(agent, endpoint)
        return _run_agent(agent, program, endpoint, settings.api_key or NO_KEY, arguments.given)


def _run_agent(agent: Agent, program: str, endpoint: Endpoint, key: str, given: list[str]) -> int:
    start = agent.start(endpoint, key)
    # Ctrl-C reaches all processes of a terminal, and is for the agent. It would inherit SIG_IGN.
    ignored = handled(lambda number, frame: None, signal.SIGINT)
    with tempfile.TemporaryDirectory(prefix="omlx-") as folder, ignored:
        arguments, variables = start.write(Path(folder))
        command = [program, *arguments, *given]
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


def _endpoint(client: Client, model: str | None, settings: Settings) -> Endpoint:
    """Return a model's endpoint: by default of the loaded, the default, or the first model."""
    with_key = settings.api_key is not None
    card = client.model(model or client.default_model(settings.default_model))
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


SESSIONS: Final = "sessions"
"""Folder, in the home folder, in which the server writes and reads."""


def session_arguments(parser: ArgumentParser) -> None:
    actions = {"save": _save, "open": _open, "fork": _fork}
    words = {"save": ("id", "file"), "open": ("file",), "fork": ("id",)}
    for name, command in add_actions(parser, "session", actions):
        for word in words[name]:
            text = sentence(f"cli.session.{word}", {})
            command.add_argument(word, metavar=word.upper(), help=text)
        command.add_argument("--home", metavar="DIR", help=table()["home"].help)


def session(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    with server_for(settings.home, None) as address:
        client, file = Client(address, settings.api_key), str(getattr(arguments, "file", ""))
        with os_errors(ConfigError, "cli.session.unreadable", file=file):
            arguments.action(arguments, client, settings.home / SESSIONS)
    return 0


def _save(arguments: Namespace, client: Client, folder: Path) -> None:
    target = Path(arguments.file).resolve()
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise ConfigError("cli.session.no_target", file=arguments.file)
    path = folder / secrets.token_hex(16)
    whole = target.with_name(f".{path.name}")
    try:
        saved = client.post("/v1/sessions/save", {"id": arguments.id, "file": path.name})
        shutil.move(path, whole)  # perhaps to another file system, whose room may not do
        whole.replace(target)
    finally:
        path.unlink(missing_ok=True)
        whole.unlink(missing_ok=True)
    _print("cli.session.saved", saved, file=arguments.file, size=size(saved["bytes"]))


def _open(arguments: Namespace, client: Client, folder: Path) -> None:
    source = Path(arguments.file).resolve()
    if source.exists() and not source.is_file():
        raise shutil.SpecialFileError("no regular file")  # may have no end
    path = folder / secrets.token_hex(16)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with suppress(OSError):  # another file system
            os.link(source, path)
        if not path.exists():
            shutil.copyfile(source, path)
        opened = client.post("/v1/sessions/open", {"file": path.name})
    finally:
        path.unlink(missing_ok=True)
    _print("cli.session.opened", opened, id=opened["id"])


def _fork(arguments: Namespace, client: Client, folder: Path) -> None:
    sys.stdout.write(client.post(f"/v1/responses/{quote(arguments.id)}/fork")["id"] + "\n")


def _print(code: str, record: Mapping[str, Any], **params: str) -> None:
    """Print figures of a session, and the reason for missing states."""
    names = ("model", "tokens", "restored", "computed")
    params |= {name: str(record[name]) for name in names if name in record}
    say(code, **params)
    if record["reason"] is not None:
        sys.stdout.write(record["reason"]["message"] + "\n")
