"""What a step costs on the control path: the plan to bytes, over the link, and back to a plan."""

from __future__ import annotations

import socket
import threading
from statistics import median
from time import perf_counter
from typing import Final

from omlx.engine.stage.link import Kind, Link
from omlx.engine.step.plan import Forward, Plan, Window
from omlx.measure.spread import Series

STEPS: Final = 200
"""Steps of each trial."""

_PLAIN: Final = Plan((), (Forward((Window(7, 900, "last"),)),))
_VERIFY: Final = Plan((), (Forward((Window(7, 900, (5,), 4, (11, 12, 13, 14), "draft"),)),))
PLANS: Final = {"plain": _PLAIN, "verify 4 drafts": _VERIFY}


def control_path(plan: Plan, trials: int) -> Series:
    """Return microseconds a step, by trial, over a TCP connection on loopback.

    A step ends when the follower, a thread here, has parsed the plan and said so: half of an empty
    round trip, measured alike, is subtracted for the way back.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = Link(socket.create_connection(listener.getsockname()))
        far = Link(listener.accept()[0])
    follower = threading.Thread(target=_follow, args=(far,))
    follower.start()
    try:
        figures = []
        for _ in range(trials):
            steps, trips = [], []
            for _ in range(STEPS):
                steps.append(_seconds(near, plan))
                trips.append(_seconds(near, None))
            figures.append(1e6 * (median(steps) - median(trips) / 2))
    finally:
        near.close()
        follower.join()
        far.close()
    return Series(tuple(figures))


def _seconds(link: Link, plan: Plan | None) -> float:
    start = perf_counter()
    if plan is None:
        link.send(Kind.BEAT)
    else:
        link.send(Kind.PLAN, plan.to_bytes())
    link.receive()
    return perf_counter() - start


def _follow(link: Link) -> None:
    while (frame := link.receive()) is not None:
        if frame.kind is Kind.PLAN:
            Plan.from_bytes(frame.payload)
        link.send(Kind.BEAT)
