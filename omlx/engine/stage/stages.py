"""What the leader knows of its followers, and its end of their links. Imports no mlx.

One thread a follower reads its frames; one more sends beats and judges: a link that ends, a
follower that reports a failure, no beat or no finished step for `timeout_s`, and the group is lost.
Then `on_lost` is called, once, from one of these threads: the engine thread may never return.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from omlx.engine.stage.link import Kind, Link
from omlx.errors import StageError, StageLost

BEAT_S: Final = 0.5
"""Seconds between two beats."""

SILENT_S: Final = 3 * BEAT_S
"""Seconds without a beat after which a status says so."""


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
        age = round(time.monotonic() - self.beat_at, 2) if self.rank else None
        return {
            "rank": self.rank,
            "host": self.host,
            "layers": list(self.layers),
            "weights_bytes": self.weights_bytes,
            "free_bytes": self.free_bytes,
            "rtt_ms": self.rtt_ms,
            "beat_age_s": age,
            "state": self.state,
            "restarts": self.restarts,
        }


class Stages:
    """The followers of one group, by rank from 1.

    `own` is the status of the leader's stage.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        hosts: Mapping[int, str],
        timeout_s: float,
        on_lost: Callable[[StageLost], None],
        *,
        leader: str = "127.0.0.1",
        restarts: int = 0,
    ) -> None:
        self.own = StageStatus(0, leader, restarts)
        self.statuses = {rank: StageStatus(rank, hosts[rank], restarts) for rank in sorted(links)}
        self._links = dict(sorted(links.items()))
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {
            rank: queue.SimpleQueue() for rank in self._links
        }
        self._lanes = 0
        self._question = 0
        self._dropped: deque[int] = deque()  # lanes that followers may forget
        self._waiting_since: float | None = None  # when the leader began to wait for its device
        self._over = threading.Event()
        self._losing = threading.Lock()

    @property
    def size(self) -> int:
        """Ranks of the group, the leader included."""
        return len(self._links) + 1

    def start(self) -> None:
        """Watch the followers until this process ends, or one is lost."""
        for rank, link in self._links.items():
            link.settimeout(
                self._timeout_s
            )  # of beats, and of what a stopped process does not read
            threading.Thread(
                target=self._read, args=(rank,), name=f"omlx-stage-{rank}", daemon=True
            ).start()
        threading.Thread(target=self._beat, name="omlx-stage-beat", daemon=True).start()

    # -- on the engine thread ----------------------------------------------------------------------

    def broadcast(self, kind: Kind, payload: bytes = b"", lane: int = 0) -> None:
        """Send one frame to every follower. Raises StageLost if one has gone."""
        for rank, link in self._links.items():
            try:
                link.send(kind, payload, lane)
            except OSError as error:
                self._lose(rank, str(error))
                raise self._lost(rank, str(error)) from error

    def ask(self, kind: Kind, values: Mapping[str, Any]) -> None:
        """Send a question to every follower; `poll` returns their replies to it, and to no earlier
        one.
        """
        self._question += 1
        self._replies = {rank: queue.SimpleQueue() for rank in self._links}
        self.broadcast(kind, json.dumps(dict(values)).encode(), self._question)

    def poll(self, seconds: float) -> dict[int, dict[str, Any]]:
        """Return one reply of each follower, by rank, if all have come within `seconds`; else
        nothing, and those that have come are kept.

        Raises StageError for a follower's refusal, naming its host.
        """
        until = time.monotonic() + seconds
        while any(replies.empty() for replies in self._replies.values()):
            if self._over.wait(0.005) or time.monotonic() > until:
                return {}
        answers = {rank: replies.get() for rank, replies in self._replies.items()}
        for rank, answer in answers.items():
            if "refused" in answer:
                values = {**answer["params"], "host": self.statuses[rank].host}
                raise StageError(answer["refused"], **values)
        return answers

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
            self._lose(0, detail)
            raise self._lost(0, detail) from error
        finally:
            self._waiting_since = None

    # -- on threads of their own -------------------------------------------------------------------

    def _read(self, rank: int) -> None:
        try:
            while (frame := self._links[rank].receive()) is not None:
                if frame.kind is Kind.BEAT:
                    self._heard(rank, frame.json())
                elif frame.kind is Kind.FAILED:
                    failure = frame.json()
                    return self._lose(rank, str(failure.get("detail")))
                elif frame.kind is Kind.LEAVING:
                    return self._lose(rank, "it was asked to stop")
                elif frame.lane == self._question:
                    self._replies[rank].put(frame.json())
            self._lose(rank, "its connection ended")
        except TimeoutError:
            self._lose(rank, f"it has been silent for {self._timeout_s:g} s")
        except (OSError, StageError) as error:
            self._lose(rank, str(error))
        return None

    def _heard(self, rank: int, beat: Mapping[str, Any]) -> None:
        status, now = self.statuses[rank], time.monotonic()
        status.rtt_ms = round((now - float(beat["sent"])) * 1e3, 3)
        status.free_bytes = int(beat["free_bytes"])
        status.beat_at = now

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            while self._dropped:
                with suppress(StageLost):  # reported already
                    self.broadcast(Kind.CLOSE, lane=self._dropped.popleft())
            now = time.monotonic()
            beat = json.dumps({"sent": now}).encode()
            for rank, link in self._links.items():
                try:
                    link.send(Kind.BEAT, beat)
                except OSError as error:
                    return self._lose(rank, str(error))
            since = self._waiting_since
            if since is not None and now - since > self._timeout_s:
                return self._lose(0, f"a step has not ended within {self._timeout_s:g} s")
        return None

    def _lose(self, rank: int, detail: str) -> None:
        with self._losing:
            if self._over.is_set():
                return
            self._over.set()
        self._on_lost(self._lost(rank, detail))

    def _lost(self, rank: int, detail: str) -> StageLost:
        host = self.statuses[rank].host if rank else "this machine"
        return StageLost("stage.lost", rank=rank, host=host, detail=detail)
