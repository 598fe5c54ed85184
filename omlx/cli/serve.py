"""`omlx serve [MODEL]`: build everything, load MODEL, say where it is, serve until told to stop.

    settings ─► socket ─► registry ─► engine thread ─► pool ─► app ─► uvicorn

The first SIGTERM or Ctrl-C lets open requests finish, `DRAIN_S` at most; a second one ends them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn

from omlx import __version__
from omlx.admin.login.credentials import Credentials
from omlx.admin.mount import mount
from omlx.admin.overview.snippets import curl
from omlx.catalog import sentence
from omlx.cli import running
from omlx.cli.bind import BACKLOG, listen, url
from omlx.cli.configured import configured
from omlx.cli.fetching import fetch, how_to_fetch
from omlx.cli.named import id_of, look_in, path_of
from omlx.cli.progress import LoadingBars
from omlx.engine.thread import EngineThread
from omlx.errors import ConfigError
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry
from omlx.models.package.package import FILE as PACKAGE_FILE
from omlx.models.package.tokenizer import import_mlx_lm
from omlx.models.pool.cost_file import CostFiles
from omlx.models.pool.draft_watcher import DraftWatcher
from omlx.models.pool.pool import Pool, build_pool
from omlx.server.app import create_app
from omlx.server.guard import check_exposure
from omlx.server.protocol import TimeoutProtocol
from omlx.server.services import build_services
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layer import Layer
from omlx.settings.resolve import add_flags
from omlx.settings.schema import Settings
from omlx.settings.watcher import ConfigurationWatcher
from omlx.telemetry import log

DRAIN_S = 60
_KEEP_ALIVE_S = 75
_LOOK_EVERY_S = 5
_SETTINGS_EVERY_S = 1
_WARM_UP_S = 2


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.serve.model", {}))
    add_flags(parser)


def run(arguments: Namespace) -> int:
    configuration = configured(arguments, aside=True)
    settings = configuration.current.resolve().settings
    check_exposure(settings.host, settings.api_key)
    choice = choose(arguments.model, configuration)
    listening = listen(settings.host, settings.port)
    log.set_up(
        settings.home, sys.stderr, logging.getLevelNamesMapping()[settings.log_level.upper()]
    )
    try:
        asyncio.run(serve(choice, listening))
    finally:
        listening.close()
        log.tear_down()
    return 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found, and what of it was asked for. The flags and the environment name the draft, not its folder.

    `discover` looks again, in the same places.
    """

    registry: Registry
    model: ModelEntry | None
    configuration: LiveConfiguration
    discover: Callable[[], Registry]

    @property
    def settings(self) -> Settings:
        return self.configuration.current.resolve().settings


def choose(model: str | None, configuration: LiveConfiguration) -> Choice:
    """Find the models named on the command line: by id, or by a path, which then is the first place to look in.

    Raises NotFound or ModelError for MODEL. A draft that is not here or cannot be used stops no start.
    """
    drafts = [
        str(layer.values["draft_model"])
        for layer in configuration.current.run
        if layer.values.get("draft_model")
    ]
    names = [name for name in [model, *drafts] if name is not None]
    look = look_in(
        [path for name in names if (path := path_of(name)) is not None], configuration.current
    )
    registry = look()
    target = None
    if model is not None:
        target = Catalog(registry, configuration).resolve(id_of(model))
    run = []
    for layer in configuration.current.run:
        values = dict(layer.values)
        if values.get("draft_model"):
            values["draft_model"] = id_of(str(values["draft_model"]))
        run.append(Layer(layer.source, values))
    return Choice(registry, target, LiveConfiguration(tuple(run), configuration.store), look)


async def serve(choice: Choice, listening: socket.socket) -> None:
    """Load, announce, serve. Returns when a signal has ended it and what was open has finished."""
    settings = choice.settings
    engine = EngineThread(calibrates=settings.calibrate)
    engine.start()
    try:
        default = choice.model.id if choice.model is not None else None
        pool = build_pool(
            engine,
            Catalog(choice.registry, choice.configuration, default),
            report=LoadingBars(),
            costs=CostFiles(settings.home / "costs"),
        )
        watcher = ConfigurationWatcher(
            choice.configuration,
            lambda: [resident.entry.path / PACKAGE_FILE for resident in pool.residents],
            pool.reconfigure,
        )
        if choice.model is not None:
            (await pool.lease(choice.model.id)).release()
        services = build_services(engine, pool, settings.api_key)
        app = create_app(services, settings)
        mount(app, services, choice.configuration, settings.home)
        config = uvicorn.Config(
            app,
            http=TimeoutProtocol,
            backlog=BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            log_config=None,
            access_log=False,
            server_header=False,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _already_handled)
        looking = (
            DraftWatcher(pool, choice.discover, fetch).run(_LOOK_EVERY_S),
            watcher.run(_SETTINGS_EVERY_S),
        )
        chores = [asyncio.create_task(chore) for chore in (*looking, _warm_up())]
        with running.told(settings.home, url(listening)):
            await Server(config, lambda: _announce(pool, settings, listening)).serve(
                sockets=[listening]
            )
        for chore in chores:
            chore.cancel()
        await asyncio.wait(chores)
    finally:
        engine.stop()


class Server(uvicorn.Server):
    """Calls `ready` once requests are taken."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        try:
            self._ready()
        except BrokenPipeError:  # nobody reads it: end as a server that was told to
            await self.shutdown(sockets)
            raise


async def _warm_up() -> None:
    """Import what the first model will need, once whoever has started the server has had their first look at it."""
    await asyncio.sleep(_WARM_UP_S)
    await asyncio.to_thread(import_mlx_lm)


def _announce(pool: Pool, settings: Settings, listening: socket.socket) -> None:
    served, address = pool.served, url(listening)
    lines = [sentence("cli.serve.ready", {"version": __version__, "url": address})]
    if served is not None:
        lines.append(sentence("cli.serve.model_ready", {"model": served.id}))
    if served is not None and served.draft is not None:
        lines.append(sentence("cli.serve.draft_ready", {"draft": served.draft}))
    elif (
        served is not None
        and served.no_draft is not None
        and served.no_draft.code != "spec.off.no_draft_model"
    ):
        lines.append(sentence(served.no_draft.code, served.no_draft.params))
        if (
            served.speculation.missing_draft is not None
            and served.speculation.settings.draft_download == "ask"
        ):
            lines.append(how_to_fetch(served.speculation.missing_draft))
    model = served.id if served is not None else next((entry.id for entry in pool.models), None)
    lines += _first_link(settings, address)
    if model is None:
        lines.append(sentence("cli.models.none", {}))
    else:
        command = curl(
            address, model, sentence("cli.serve.prompt", {}), with_key=settings.api_key is not None
        )
        lines += [sentence("cli.serve.try", {}), f"  {command}"]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _first_link(settings: Settings, address: str) -> list[str]:
    """While there is no password: the way in."""
    credentials = Credentials(settings.home)
    try:
        if credentials.has_password:
            return []
        return [sentence("cli.serve.link", {"link": credentials.link(address)})]
    except ConfigError as error:
        sys.stderr.write(f"omlx: {error.message}\n")
        return []


def _already_handled(number: int, frame: FrameType | None) -> None:
    """uvicorn raises a signal again once it has drained; by then there is nothing left to do."""
