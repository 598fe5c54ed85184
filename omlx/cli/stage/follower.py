"""`omlx stage`: a follower of a model in stages, started by `omlx serve MODEL --hosts`.

The main thread reads the link and answers beats; a second thread owns every mlx call. Any error
ends the process: ranks that disagree would produce wrong answers.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import NoReturn

from omlx.catalog import sentence
from omlx.cli.arguments import configured, find_model
from omlx.cli.stage.links import introduced
from omlx.cli.stage.processes import LOST, SILENT
from omlx.engine.stage.link import Frame, Kind, Link, Order
from omlx.engine.stage.runners import join
from omlx.errors import ModelError, NotFound, StageError
from omlx.machine import set_up_allocator
from omlx.models.catalog.tokenizer import import_mlx_lm
from omlx.models.pool.footprint import bound_mlx, free_bytes, limit_bytes, wire
from omlx.models.stages import FollowerStage
from omlx.settings.layers import add_flags


def run_arguments(parser: ArgumentParser) -> None:
    parser.description = sentence("cli.stage.description", {})
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.serve.model", {}))
    add_flags(parser)


def run(arguments: Namespace) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the supervisor
    set_up_allocator()
    order = Order.from_line(sys.stdin.readline())
    configuration = configured(arguments)
    import_mlx_lm()
    settings = configuration.current.resolve().settings
    limit = limit_bytes(settings.memory_limit)
    bound_mlx(limit)
    wire(settings.wired_limit)
    name = arguments.model or ""
    stage = FollowerStage(partial(find_model, name, configuration))
    process = StageProcess(introduced(order), order, stage, name, limit)
    signal.signal(signal.SIGTERM, process.leave)
    process.run()


@dataclass(slots=True)
class StageProcess:
    """Has `stage` carry out the leader's frames, in order.

    `name` is the model's; `limit` bounds the bytes of models here.
    """

    link: Link
    order: Order
    stage: FollowerStage
    name: str
    limit: int
    _frames: queue.SimpleQueue[Frame] = field(default_factory=queue.SimpleQueue)

    def run(self) -> NoReturn:
        """Serve until the leader has gone, then end this process.

        A normal return could hang: the other thread may wait in a collective forever.
        """
        threading.Thread(target=self._carry_out, name="omlx-stage", daemon=True).start()
        with suppress(OSError):  # the leader has gone
            try:
                while (frame := self.link.receive()) is not None:
                    self._receive(frame)
            except TimeoutError:
                os._exit(SILENT)
            except (RuntimeError, StageError) as error:
                self._fail(error)
        os._exit(LOST)

    def leave(self, number: int, frame: FrameType | None) -> None:
        """Report to the leader, and end. Handles SIGTERM."""
        self._end("it was asked to stop")

    @property
    def _room(self) -> dict[str, int]:
        return {"free_bytes": free_bytes(self.limit)}

    def _receive(self, frame: Frame) -> None:
        if frame.kind is Kind.BEAT:
            self.link.send_json(Kind.BEAT, {**frame.json(), **self._room})
        elif frame.kind is Kind.JOIN:
            self.stage.group = join(self.order)
            self.link.settimeout(self.order.timeout_s)
        # Portions measure the link's throughput and are dropped.
        elif frame.kind is not Kind.PORTION:
            self._frames.put(frame)

    def _carry_out(self) -> None:
        """Carry out frames on the thread that owns mlx."""
        try:
            while True:
                self._handle(self._frames.get())
        except BaseException as error:  # noqa: BLE001 — any error here is the end of the group
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        detail = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"omlx: this stage failed: {detail}\n")
        self._end(detail)

    def _end(self, detail: str) -> NoReturn:
        try:
            self.link.send_json(Kind.FAILED, {"detail": detail})
        finally:
            os._exit(LOST)

    def _handle(self, frame: Frame) -> None:
        try:
            reply = self.stage.carry_out(frame)
        except (ModelError, NotFound, StageError) as error:
            if frame.kind not in (Kind.CHECK, Kind.LOAD):
                raise
            if not isinstance(error, StageError):
                params = {"model": self.name, "detail": error.message}
                error = StageError("stage.model_missing", **params)
            self.link.refuse(Kind.REPLY, error, frame.lane, host=self.order.host)
        else:
            if reply is not None:
                self.link.send_json(Kind.REPLY, {**reply, **self._room}, frame.lane)
