"""`omlx serve` whose device stops answering: `python -m tests.cli.hanging FOLDER serve …`.

As soon as FOLDER has a file `hang`, the next read of a step waits for ever. From then on the
watchdog's bounds are short, and never before: nothing depends on how fast the machine is. The
server ends only when FOLDER has a file `seen`. With a file `short-drain` the device is slow
and a drain lasts a second.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final

from omlx.cli.main import main
from omlx.cli.serve import command as serve
from omlx.cli.serve import ending
from omlx.engine.device.runner import Launch, Runner
from omlx.engine.step.plan import Read
from omlx.engine.work import HangBounds, Watchdog
from omlx.errors import EngineDead

SHORT: Final = HangBounds(known_s=0.3, unknown_s=0.3)
FOLDER: Final = Path(sys.argv[1])
DRAINS_SHORTLY: Final = (FOLDER / "short-drain").exists()

hung = threading.Event()
read = Runner.read


def reading(self: Runner, launch: Launch, *, last: bool = False) -> dict[int, Read]:
    if (FOLDER / "hang").exists():
        hung.set()
        threading.Event().wait()
    if DRAINS_SHORTLY:
        time.sleep(0.05)  # a slow device: no answer is complete when the drain ends
    return read(self, launch, last=last)


class Impatient(Watchdog):
    def look(self) -> EngineDead | None:
        if hung.is_set() and not self.ending:
            self._bounds = SHORT
        return super().look()


class Observed(ending.Server):
    async def on_tick(self, counter: int) -> bool:
        seen = self.should_exit or (FOLDER / "seen").exists()
        return await super().on_tick(counter) and seen


if __name__ == "__main__":
    Runner.read = reading  # type: ignore[method-assign] — that is the test
    serve.Watchdog, serve.Server = Impatient, Observed  # type: ignore[misc] — that is the test
    ending._DEAD_STOP_S = 600.0  # type: ignore[misc] — until the test has seen it
    if DRAINS_SHORTLY:
        ending.DRAIN_S = 1  # type: ignore[misc] — that is the test
    sys.exit(main(sys.argv[2:]))
