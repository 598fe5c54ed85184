"""Followers as the leader knows them, and the leader's end of their links. Imports no mlx.

One thread a follower reads its frames; one more sends beats and judges: a link that ends, a
follower that reports a failure, no beat or no finished step for `timeout_s`, and the group is lost.
Then `on_lost` is called, once, from one of these threads: the engine thread may never return.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from omlx.engine.stage.link import Frame, Kind, Link, Order
from omlx.engine.types import Steps
from omlx.errors import StageLost

BEAT_S: Final = 0.5
"""Seconds between two beats."""

SILENT_S: Final = 3 * BEAT_S
"""Seconds without a beat after which a status says so."""

_POLL_S: Final = 0.05
"""Seconds that the engine thread waits for replies before other models get a step."""


@dataclass(slots=True)
class StageStatus:
    """A stage as last heard of. `layers` are [first, behind the last) of the whole model.

    `rtt_ms` is None for the leader, rank 0, and before the first beat. The supervisor has started
    the group again `restarts` times.
    """

    rank: int
    host: str
    restarts: int = 0
    layers: tuple[int, int] = (0, 0)
    weights_bytes: int = 0
    free_bytes: int = 0
    rtt_ms: float | None = None
    beat_at: float = field(default_factory=time.monotonic)

    @property
    def machine(self) -> str:
        """Its host; every name of the loopback interface is the same machine."""
        with suppress(ValueError):
            return "localhost" if ip_address(self.host).is_loopback else self.host
        return self.host

    @property
    def state(self) -> str:
        """A key below `ui.stage.`: `loading`, `ready`, or `silent` without beats."""
        if not self.weights_bytes:
            return "loading"
        if self.rank and time.monotonic() - self.beat_at > SILENT_S:
            return "silent"
        return "ready"

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        age = time.monotonic() - values.pop("beat_at")
        return {**values, "beat_age_s": round(age, 2) if self.rank else None, "state": self.state}


class Stages:
    """The followers of one group, by rank from 1.

    `free_bytes` returns the bytes that a model may still take in this process, the leader.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        order: Order,
        on_lost: Callable[[StageLost], None],
        free_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.order = order
        self._free_bytes = free_bytes
        self._statuses = tuple(
            StageStatus(rank, host, order.restarts) for rank, host in enumerate(order.hosts)
        )
        self._links = dict(sorted(links.items()))
        self._on_lost = on_lost
        self._replies: dict[int, Future[Frame]] = {}
        self._lanes = 0
        self._question = 0
        self._dropped: deque[int] = deque()  # lanes that followers may forget
        self._waiting_since: float | None = None  # when the leader began to wait for its device
        self._over = threading.Event()
        self._losing = threading.Lock()

    @property
    def statuses(self) -> tuple[StageStatus, ...]:
        """All stages as last heard of, by rank; this one as it is now."""
        self._statuses[0].free_bytes = self._free_bytes()
        return self._statuses

    @property
    def rooms(self) -> list[int]:
        """Bytes that a model may take, by rank."""
        return [status.free_bytes for status in self.statuses]

    def start(self) -> None:
        """Watch the followers until this process ends, or one is lost."""
        threads = [
            threading.Thread(target=self._read, args=(rank,), name=f"omlx-stage-{rank}")
            for rank in self._links
        ]
        for link in self._links.values():
            # Of beats, and of what a stopped process does not read.
            link.settimeout(self.order.timeout_s)
        for thread in (*threads, threading.Thread(target=self._beat, name="omlx-stage-beat")):
            thread.daemon = True
            thread.start()

    # -- on the engine thread ----------------------------------------------------------------------

    def broadcast(self, kind: Kind, payload: bytes = b"", lane: int = 0) -> None:
        """Send one frame to every follower. Raises StageLost if one has gone."""
        for rank, link in self._links.items():
            try:
                link.send(kind, payload, lane)
            except OSError as error:
                raise self._lose(rank, str(error)) from error

    def ask(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Send a question to every follower; `replies` returns the replies to it, and to no earlier
        one.
        """
        self._question += 1
        self._replies = {rank: Future() for rank in self._links}
        self.broadcast(kind, json.dumps(dict(values)).encode(), self._question)

    def replies(self) -> Steps[dict[int, dict[str, Any]]]:
        """Wait in steps for the replies of all followers; return them by rank. Raises StageError
        for a follower's refusal.
        """
        while wait(self._replies.values(), _POLL_S).not_done:
            yield
        replies = {rank: reply.result().answer() for rank, reply in self._replies.items()}
        for rank, reply in replies.items():
            self._statuses[rank].free_bytes = int(reply["free_bytes"])
        return replies

    def open_lane(self) -> int:
        """Have every follower make a runner; return the number of its lane."""
        lane, self._lanes = self._lanes, self._lanes + 1
        self.broadcast(Kind.LANE, lane=lane)
        return lane

    def drop_lane(self, lane: int) -> None:
        """Have followers forget a lane, soon. Any thread may call, at any time."""
        self._dropped.append(lane)

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Work on the leader's own stage, which may wait for others: it must end in time.

        Raises StageLost for whatever it raises: the stages no longer agree.
        """
        self._waiting_since = time.monotonic()
        try:
            yield
        except Exception as error:  # of any type: each one ends the group
            detail = f"{type(error).__name__}: {error}"
            raise self._lose(0, detail) from error
        finally:
            self._waiting_since = None

    # -- on threads of their own -------------------------------------------------------------------

    def _read(self, rank: int) -> None:
        detail = "its connection ended"
        try:
            while (frame := self._links[rank].receive()) is not None:
                if frame.kind is Kind.BEAT:
                    self._heard(rank, frame.json())
                elif frame.kind is Kind.FAILED:
                    detail = str(frame.json().get("detail"))
                    break
                elif frame.lane == self._question:
                    self._replies[rank].set_result(frame)
        except TimeoutError:
            detail = f"it has been silent for {self.order.timeout_s:g} s"
        except Exception as error:  # noqa: BLE001 — of any type: no one is left to hear it
            detail = str(error)
        self._lose(rank, detail)

    def _heard(self, rank: int, beat: Mapping[str, Any]) -> None:
        status, now = self._statuses[rank], time.monotonic()
        status.rtt_ms = round((now - float(beat["sent"])) * 1e3, 3)
        status.free_bytes = int(beat["free_bytes"])
        status.beat_at = now

    def _beat(self) -> None:
        with suppress(StageLost):  # reported already
            while not self._over.wait(BEAT_S):
                while self._dropped:
                    self.broadcast(Kind.CLOSE, lane=self._dropped.popleft())
                now = time.monotonic()
                self.broadcast(Kind.BEAT, json.dumps({"sent": now}).encode())
                since = self._waiting_since
                if since is not None and now - since > self.order.timeout_s:
                    self._lose(0, f"a step has not ended within {self.order.timeout_s:g} s")

    def _lose(self, rank: int, detail: str) -> StageLost:
        """Report that a stage is lost, once; return the error."""
        host = self._statuses[rank].host if rank else "this machine"
        failure = StageLost("stage.lost", rank=rank, host=host, detail=detail)
        with self._losing:
            first = not self._over.is_set()
            self._over.set()
        if first:
            self._on_lost(failure)
        return failure
