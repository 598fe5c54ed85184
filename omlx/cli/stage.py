"""`omlx stage`: a follower of a model in stages, started by `omlx serve MODEL --hosts`.

The main thread reads the link and answers beats; a second one owns every mlx call. Any error ends
the process: ranks that disagree would go on with wrong answers.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from types import FrameType
from typing import Any, NoReturn

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.stage_join import follow
from omlx.cli.stage_order import LOST, SILENT, Order
from omlx.cli.stage_probe import answer_probe, find_model
from omlx.engine.plan import Plan
from omlx.engine.stage.group import Group
from omlx.engine.stage.link import Frame, Kind, Link
from omlx.errors import ConfigError, ModelError, NotFound, StageError
from omlx.models.package.tokenizer import import_mlx_lm
from omlx.models.pool.footprint import free_bytes, release_memory
from omlx.models.pool.staged import FollowerModel
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.resolve import add_flags


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = sentence("cli.stage.description", {})
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.serve.model", {}))
    parser.add_argument("--probe", action="store_true", help=sentence("cli.stage.probe", {}))
    add_flags(parser)


def run(arguments: Namespace) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the supervisor
    order = Order.read()
    configuration = configured(arguments)
    if arguments.probe:
        return answer_probe(order, arguments.model, configuration)
    if arguments.model is None:
        raise ConfigError("stage.no_model")
    import_mlx_lm()
    link, group = follow(order)
    process = StageProcess(link, group, arguments.model, configuration)
    signal.signal(signal.SIGTERM, process.leave)
    process.run()


class StageProcess:
    """Carries out what the leader sends, in order."""

    def __init__(
        self, link: Link, group: Group, model: str, configuration: LiveConfiguration
    ) -> None:
        self._link = link
        self._group = group
        self._name = model
        self._configuration = configuration
        self._model: FollowerModel | None = None
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def run(self) -> NoReturn:
        """Serve until the leader has gone, and end this process: the other thread may wait in a
        collective for good.
        """
        threading.Thread(target=self._carry_out, name="omlx-stage", daemon=True).start()
        status = LOST
        try:
            while (frame := self._link.receive()) is not None:
                if frame.kind is Kind.BEAT:
                    self._link.send_json(Kind.BEAT, {**frame.json(), "free_bytes": free_bytes()})
                else:
                    self._frames.put(frame)
        except TimeoutError:
            status = SILENT
        except OSError:  # the leader has gone
            pass
        except BaseException as error:  # noqa: BLE001 — any error here is the end of the group
            sys.stderr.write(f"omlx: this stage failed: {type(error).__name__}: {error}\n")
        finally:
            os._exit(status)

    def leave(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM: tell the leader, and end."""
        try:
            self._link.send(Kind.LEAVING)
        finally:
            os._exit(LOST)

    def _carry_out(self) -> None:
        """Run on the thread that owns mlx."""
        try:
            while True:
                self._handle(self._frames.get())
        except BaseException as error:  # noqa: BLE001 — any error here is the end of the group
            detail = f"{type(error).__name__}: {error}"
            try:
                self._link.send_json(Kind.FAILED, {"code": "stage.failed", "detail": detail})
            finally:
                sys.stderr.write(f"omlx: this stage failed: {detail}\n")
                os._exit(LOST)

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.LOAD:
                self._open(frame)
            case Kind.READ:
                loaded = {"weights_bytes": self._loaded.read()}
                self._link.send_json(Kind.LOADED, loaded, frame.lane)
            case Kind.PROBE:
                self._link.send_json(Kind.PROBED, self._loaded.probe(), frame.lane)
            case Kind.CLOSE:
                if self._model is not None and self._model.close_lane(frame.lane):
                    self._free()
            case Kind.LANE:
                self._loaded.open_lane(frame.lane)
            case Kind.PLAN:
                self._loaded.lane(frame.lane).follow(Plan.from_bytes(frame.payload))
            case _:
                raise StageError("stage.protocol", detail=f"{frame.kind.name} was not due")

    def _free(self) -> None:
        self._model = None
        release_memory()

    def _open(self, frame: Frame) -> None:
        """Open the model that this process was started for, or tell the leader why not."""
        order = frame.json()
        self._free()
        answer: dict[str, Any] = {}
        try:
            entry = find_model(self._name, self._configuration)
            self._model = FollowerModel(entry, order, self._group)
        except StageError as error:
            answer = {"refused": error.code, "params": error.params}
        except (ModelError, NotFound) as error:
            params = {"model": self._name, "detail": error.message}
            answer = {"refused": "stage.model_missing", "params": params}
        self._link.send_json(Kind.OPENED, answer, frame.lane)

    @property
    def _loaded(self) -> FollowerModel:
        if self._model is None:
            raise StageError("stage.protocol", detail="no model was loaded")
        return self._model
