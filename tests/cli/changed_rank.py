"""What a test changes in one rank of a group, from inside: see `rank_site`.

A fault strikes once, at a point that the rank has reached by itself, so that nothing depends on how
fast the machine is. The moment is written to a file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from omlx.cli.stage import follower as stage
from omlx.cli.stage import links as stage_join
from omlx.cli.stage.processes import JOIN_S
from omlx.engine.device.launch import Launch
from omlx.engine.stage import runners
from omlx.engine.stage.link import Link, Order, introduce
from omlx.engine.stage.stages import Stages
from omlx.engine.step.plan import Plan, Step
from omlx.errors import StageError
from omlx.models import stages as staged

WAYS: Final = ("kill", "exception", "stop", "exit")
STARTING: Final = ("init", "loading")
"""Before the rank joins mlx's group; at the first portion of its weights."""

SERVING: Final = ("idle", "prefill", "flight", "draft")
"""When SIGUSR1 comes; with a chunk of a prompt dispatched; with the 20th plain step dispatched;
before the verification of a draft."""

_STEPS: Final = 20
_CHUNK: Final = 64
"""Tokens of a window that only a prompt has."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Rank `rank` fails at a state in a way, after so many `restarts` of its group.

    `file`: where the moment is written.
    """

    rank: int
    at: str
    how: str
    file: str
    restarts: int = 0

    @property
    def moment(self) -> float | None:
        """The monotonic time at which the rank has failed."""
        try:
            return float(Path(self.file).read_text())
        except (FileNotFoundError, ValueError):  # not yet, or not yet written
            return None

    def strike(self) -> None:
        """Fail, the first time that a process comes here."""
        try:
            with Path(self.file).open("x") as stream:
                stream.write(repr(time.monotonic()))
        except FileExistsError:
            return
        if self.how == "exception":
            raise RuntimeError("a fault of the test")
        if self.how == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)


def faults(*given: Fault) -> dict[str, Any]:
    """What `install` needs for them."""
    return {"faults": [asdict(fault) for fault in given]}


def install(text: str, *, follows: bool) -> None:
    """Change this process, before it has read its order."""
    changes = json.loads(text)
    _on_order([Fault(**fault) for fault in changes.get("faults", ())])
    if not follows:
        _ask_for(changes.get("ask", {}))
        return
    os.environ |= changes.get("environment", {})
    _tell(changes.get("facts", {}))
    if "attack" in changes:
        _attack(Path(changes["attack"]))


def _on_order(faults: list[Fault]) -> None:
    read = Order.from_line

    def reading(line: str) -> Order:
        order = read(line)
        for fault in faults:
            if (order.rank, order.restarts) == (fault.rank, fault.restarts):
                _AT.get(fault.at, _at_step)(fault)
        return order

    Order.from_line = staticmethod(reading)  # type: ignore[method-assign] — that is the test


def _ask_for(values: Mapping[str, Any]) -> None:
    """Have the leader send other values with its questions."""
    ask = Stages.ask

    def asking(self: Stages, kind: Any, given: Mapping[str, Any]) -> None:
        ask(self, kind, {**given, **values})

    Stages.ask = asking  # type: ignore[method-assign] — that is the test


def _tell(values: Mapping[str, str]) -> None:
    """Have a follower introduce itself with other versions."""
    facts = stage_join.facts
    stage_join.facts = lambda: {**facts(), **values}


def _attack(report: Path) -> None:
    """Send the leader what a stranger may send, before rank 1 connects; then be rank 1 twice."""
    introduced = stage.introduced
    silent = list[socket.socket]()

    def introducing(order: Order) -> Link:
        until = time.monotonic() + JOIN_S
        while order.rank == 2 and not report.exists() and time.monotonic() < until:
            time.sleep(0.02)  # the leader accepts connections until all ranks are there
        if order.rank == 2:
            return introduced(order)
        silent.append(socket.create_connection(order.control))  # never says anything
        deep = b"[" * 100_000
        greeting = len(deep).to_bytes(4, "big") + b"\1\0\0\0\0" + deep
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\3\0\0\0\0{}", b"\0\0", greeting):
            with socket.create_connection(order.control) as stranger, suppress(OSError):
                stranger.sendall(garbage)
        refusal = _refusal(order.control, bytes(32), order.rank)
        link = introduced(order)
        again = _refusal(order.control, bytes.fromhex(order.secret), order.rank)
        report.write_text(json.dumps([refusal, again]))
        return link

    stage.introduced = introducing


def _refusal(address: Any, secret: bytes, rank: int) -> str:
    """Return the code with which the leader refuses a follower."""
    with socket.create_connection(address) as connection:
        try:
            introduce(Link(connection), secret, stage_join.facts(), rank)
        except StageError as error:
            return error.code
    return "welcome"


def _at_init(fault: Fault) -> None:
    join = stage_join.join

    def joining(order: Order) -> Any:
        fault.strike()
        return join(order)

    stage.join = stage_join.join = joining


def _at_loading(fault: Fault) -> None:
    read = staged.read_weights

    def reading(model: Any) -> Generator[Any, None, int]:
        steps = read(model)
        yield next(steps)
        fault.strike()
        return (yield from steps)

    staged.read_weights = reading


def _at_signal(fault: Fault) -> None:
    def strike(number: int, frame: FrameType | None) -> None:
        fault.strike()

    signal.signal(signal.SIGUSR1, strike)


def _at_step(fault: Fault) -> None:
    launch = runners._StageRunner.launch
    plain = 0

    def launching(self: Any, step: Step) -> Launch:
        nonlocal plain
        drafts, chunk = _kind(step.plan)
        if fault.at == "draft" and drafts:
            fault.strike()
        launched = launch(self, step)
        plain += not drafts and not chunk
        if (fault.at == "prefill" and chunk) or (fault.at == "flight" and plain == _STEPS):
            fault.strike()
        return launched

    runners._StageRunner.launch = launching  # type: ignore[method-assign] — that is the test


def _kind(plan: Plan) -> tuple[bool, bool]:
    """Whether a step verifies drafts, and whether it reads a chunk of a prompt."""
    windows = [*plan.windows]
    drafts = any(window.draft_n for window in windows)
    return drafts, any(window.width > _CHUNK for window in windows)


_AT: Final[dict[str, Callable[[Fault], None]]] = {
    "init": _at_init,
    "loading": _at_loading,
    "idle": _at_signal,
}
