"""How the processes of a group start and end: ports, orders, exit statuses, news. No mlx."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from omlx.engine.stage.order import Order
from omlx.errors import ConfigError, StageError

JOINED: Final = b"j"
SERVING: Final = b"s"
"""What a leader writes to `report`: how far it has come."""

REFUSED: Final = 2
"""Exit status for what the user must mend."""

LOST: Final = 75
"""Exit status after a stage was lost: the supervisor starts the group again."""

SILENT: Final = 76
"""Exit status of a follower that has not heard of the leader in time: it cannot end by itself."""

GRACE_S: Final = 2.0
"""Seconds that the leader has to tell open requests why a lost follower ends them."""

_ORPHANED_S: Final = 1.0
"""Seconds that open requests have after the end of the supervisor."""

JOIN_S: Final = 60.0
"""Seconds within which all processes of a group must have come together."""


def start(
    command: Sequence[str], order: Order, environment: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start one process, with `options` of Popen, and hand it its order on standard input. Raises
    StageError.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor only
            **options,
        )
    except OSError as error:
        raise StageError("stage.not_started", host=order.host, detail=str(error)) from None
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, which is found out elsewhere
        process.stdin.write(order.to_line())
        process.stdin.flush()
    return process


def reserve_port(address: str) -> socket.socket:
    """Bind a free port of this machine's address. Only who asks to share it, as mlx does, gets it
    meanwhile. Raises ConfigError.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((address, 0))
    except OSError as error:
        reserved.close()
        raise ConfigError("stage.address", address=address, detail=str(error)) from None
    return reserved


def end_without_supervisor() -> None:
    """End this process when the supervisor has gone: its end of standard input closes. Open
    requests have `_ORPHANED_S` to finish.
    """

    def watch() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHANED_S)  # a second signal ends the drain
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="omlx-supervisor", daemon=True).start()
