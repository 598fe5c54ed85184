"""`omlx serve [MODEL]`: the composition root. Build, load MODEL, announce, serve until a signal.

    settings ─► catalog ─► socket ─► engine thread ─► pool ─► services ─► app ─► uvicorn

The first SIGTERM or Ctrl-C drains, a second one ends at once (`omlx.cli.serve.ending`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from omlx.admin.mount import mount
from omlx.catalog import sentence
from omlx.cli import online_environment
from omlx.cli.arguments import Selection, configured, select
from omlx.cli.output import LoadingBars, warn
from omlx.cli.serve.address import (
    BACKLOG,
    check_certificate,
    ensure_key,
    find_servers,
    listen,
    open_to_network,
    published,
    url,
    without_flag,
)
from omlx.cli.serve.announcement import announce, ask
from omlx.cli.serve.ending import (
    ENGINE_DIED,
    STOP_S,
    Deadline,
    EngineMonitor,
    Server,
    handle_signals,
)
from omlx.cli.stage.processes import SERVING
from omlx.cli.stage.supervisor import add_group_flags, refuse_misuse, supervisor
from omlx.engine.device.gpu import warm_gpu
from omlx.engine.stage.link import Order
from omlx.engine.thread import EngineThread
from omlx.engine.work import Watchdog
from omlx.errors import EngineDead
from omlx.machine import program_words, set_up_allocator
from omlx.models.catalog.package import FILE as PACKAGE_FILE
from omlx.models.catalog.tokenizer import import_mlx_lm
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.cost_store import CostStore
from omlx.models.pool.footprint import bound_mlx, wire
from omlx.models.pool.load_weights import WeightReader, load_steps
from omlx.models.pool.pool import Pool, build_pool
from omlx.models.pool.prefix_disk import open_disks, prefix_root, stop_engine
from omlx.models.watchers import DraftWatcher, RegistryWatcher
from omlx.power import Awake
from omlx.receipts.kept import AnswerStore
from omlx.server.app import create_app, every
from omlx.server.beginnings.store import EARLIER_FILE, BeginningStore
from omlx.server.http.guard import check_keys
from omlx.server.http.transport import TimeoutProtocol
from omlx.server.journal.journal import Journal
from omlx.server.request.media.images import UrlReader
from omlx.server.services import Services, Stores, build_services
from omlx.settings.configuration import ConfigurationWatcher, LiveConfiguration
from omlx.settings.layers import add_flags
from omlx.settings.schema import Settings
from omlx.telemetry import log
from omlx.text.template import process as template_process

if TYPE_CHECKING:
    from omlx.models.stages import StagedReader

_FAILED = 1
_KEEP_ALIVE_S = 75
_DRAFT_INTERVAL_S = 5
_MODELS_INTERVAL_S = 3
_SETTINGS_INTERVAL_S = 1
_WARM_UP_S = 2
_DAY_S = 86400.0


def run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.serve.model", {}))
    parser.add_argument("--lan", action="store_true", help=sentence("cli.serve.lan", {}))
    parser.add_argument(
        "--no-open", dest="opens", action="store_false", help=sentence("cli.serve.no_open", {})
    )
    add_group_flags(parser)
    add_flags(parser)


def run(arguments: Namespace) -> int:
    refuse_misuse(arguments)
    set_up_allocator()
    configuration = configured(arguments, rename_broken=True)
    if arguments.lan:
        ensure_key(configuration)
        open_to_network(arguments, configuration.current.resolve().settings)
        configuration = configured(arguments)
    settings = configuration.current.resolve().settings
    check_keys(settings)
    check_certificate(settings)
    wire(settings.wired_limit)
    selection = select(arguments.model, configuration)
    if arguments.lead:
        # The supervisor writes the order, and passes on the listening socket.
        order = Order.from_line(sys.stdin.readline())
        listening = socket.socket(fileno=order.listening)
    else:
        advised = [*program_words(), *without_flag(arguments.words, "--api-key")]
        order, listening = None, listen(settings.host, settings.port, advised)
        for other in find_servers(settings.home):
            warn("cli.serve.beside", url=other.url)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    try:
        if selection.model is None and (chosen := ask(selection.discover, settings)) is not None:
            selection = select(chosen, configuration)
        log.set_up(settings.home, sys.stderr, level)
        if arguments.hosts is not None and order is None:
            return supervisor(arguments, listening).run()
        with Deadline() as deadline:
            welcome = partial(announce, lan=arguments.lan, opens=arguments.opens)
            return asyncio.run(serve(selection, listening, deadline, order, welcome))
    except EngineDead as error:  # while the model was loaded
        sys.stderr.write(f"omlx: {error.message}\n")
        return ENGINE_DIED
    finally:
        listening.close()
        log.tear_down()


async def serve(
    selection: Selection,
    listening: socket.socket,
    deadline: Deadline,
    order: Order | None = None,
    welcome: Callable[[Services, Settings, str], None] = announce,
) -> int:
    """Load, announce, serve. Returns the exit code once the server has drained.

    That is after a signal, or when the engine thread has died (`ENGINE_DIED`: another process could
    serve). Sets the `deadline` of the process. `order` makes this process the leader of a model in
    stages.
    """
    live = selection.catalog.live
    settings = live.current.resolve().settings
    engine = EngineThread(calibrates=settings.calibrate, warm=warm_gpu(settings.keep_warm))
    disks = open_disks(settings, engine)
    monitor, code = EngineMonitor(engine, Watchdog(engine.heartbeat), deadline), _FAILED
    engine.start()
    watching = asyncio.create_task(monitor.run())
    try:
        costs = CostStore(settings.home)
        staged = None if order is None else _staged_reader(order, engine, selection)
        read: WeightReader = staged or load_steps
        build = partial(build_pool, report=LoadingBars(), apply_limit=bound_mlx)
        pool = build(engine, selection.catalog, costs=costs, read=read, disks=disks)
        if selection.model is not None:
            template_process.start_early()  # the first request comes as soon as it is announced
            (await pool.lease(selection.model)).release()
        stages = staged.stages if staged is not None else None
        urls = UrlReader() if settings.allow_image_url else None
        stores = open_stores(settings)
        services = build_services(engine, pool, stores, settings.api_key, stages, urls)
        app = create_app(services, settings)
        mount(app, services, live, settings.home)
        registry_watcher = RegistryWatcher(pool, selection.discover)
        stores.downloads.on_arrival = registry_watcher.check
        handle_signals()
        drafts = DraftWatcher(pool, selection.discover, stores.downloads.fetch)
        tasks = _background_tasks(live, pool, registry_watcher, drafts)
        config = _uvicorn_config(app, settings)
        address = url(listening, "https" if settings.tls_cert else "http")

        def ready() -> None:
            welcome(services, settings, address)
            if order is not None:
                os.write(order.report, SERVING)

        server = Server(config, monitor, ready)
        with published(settings.home, address, selection.folders):
            await server.serve(sockets=[listening])
        code = ENGINE_DIED if engine.failure is not None else 0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return code
    finally:
        deadline.set(STOP_S, code)
        watching.cancel()
        stop_engine(engine, disks)


def _background_tasks(
    live: LiveConfiguration, pool: Pool, models: RegistryWatcher, drafts: DraftWatcher
) -> list[asyncio.Task[None]]:
    """Start tasks that need command line, settings files or disk; the pool's run with the app."""
    settings = ConfigurationWatcher(
        live, lambda: [each.entry.path / PACKAGE_FILE for each in pool.residents], pool.reconfigure
    )
    work = (
        every(_MODELS_INTERVAL_S, models.check, "model check failed"),
        drafts.run(_DRAFT_INTERVAL_S),
        every(_SETTINGS_INTERVAL_S, settings.check, "settings watcher"),
        _warm_up(),
        Awake(lambda: live.current.resolve().settings.keep_awake).run(partial(in_use, pool)),
    )
    return [asyncio.create_task(task) for task in work]


def in_use(pool: Pool) -> bool:
    """Whether a request waits for a model or uses one."""
    used = any(resident.leases for resident in pool.residents)
    return used or pool.load_queue.requests > 0


def open_stores(settings: Settings) -> Stores:
    """Return the on-disk stores enabled by settings; files are opened on first use."""
    home, journal = settings.home, None
    if settings.answer_disk:
        journal = Journal(home / "answers", settings.answer_disk, settings.answer_days * _DAY_S)
    downloads = Downloads(home, online_environment())
    beginnings = None
    if settings.prefix_disk != 0:
        beginnings = BeginningStore(home, prefix_root(settings) / EARLIER_FILE)
    return Stores(downloads, AnswerStore(home), journal, home, beginnings)


def _staged_reader(order: Order, engine: EngineThread, selection: Selection) -> StagedReader:
    from omlx.cli.stage.links import staged_reader  # noqa: PLC0415 — imports mlx-lm, which is slow

    return staged_reader(order, engine, selection)


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        http=TimeoutProtocol,
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        log_config=None,
        access_log=False,
        server_header=False,
    )


async def _warm_up() -> None:
    """Import mlx-lm and start a template process in the background, `_WARM_UP_S` after start."""
    await asyncio.sleep(_WARM_UP_S)
    await asyncio.to_thread(import_mlx_lm)
    await asyncio.to_thread(template_process.start_early)
