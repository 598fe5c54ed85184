"""A device of plain lists: carries out plans the way the runner does, so that the scheduler is
tested without mlx.

Every row and entry holds the ids it has read. The answer to any id is the next integer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from omlx.draft_length import DraftLength
from omlx.engine.memory import MemoryGuard
from omlx.engine.piece import Layout, Piece
from omlx.engine.prefix.reuse import PrefixReuse
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.stage.runners import StageSizes
from omlx.engine.step.plan import (
    LAST,
    Drop,
    Evict,
    Extract,
    Filter,
    Merge,
    Open,
    Plan,
    Read,
    Restore,
    Rewind,
    Save,
    Window,
)
from omlx.engine.step.row import CacheSizes, Status
from omlx.engine.step.scheduler import Scheduler
from omlx.engine.types import (
    Event,
    Finished,
    Limits,
    Request,
    Sampling,
    TokensCommitted,
    Traits,
)
from omlx.errors import Reason
from omlx.records import RequestStats

T = TypeVar("T")

PLAIN = Traits(recurrent=False, sliding_window=None, unsupported=())
RECURRENT = Traits(recurrent=True, sliding_window=None, unsupported=())


class Device:
    unseen = 0.0

    def __init__(self) -> None:
        self.single: dict[int, list[int]] = {}
        self.batch: dict[int, list[int]] = {}
        self.kept: dict[int, tuple[Piece, list[int]]] = {}
        self.bytes_per_token = 1
        self._last: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Tokens of rows and of what is kept, a byte each."""
        rows = (*self.single.values(), *self.batch.values())
        return sum(map(len, (*rows, *(tokens for _, tokens in self.kept.values()))))

    def row_bytes(self, row: int) -> int:
        return self.bytes_per_token * self.length(row)

    def length(self, row: int) -> int:
        return len(self.single.get(row) or self.batch.get(row) or [])

    def launch(self, plan: Plan) -> dict[int, Read]:
        for op in plan.ops:
            self._apply(op)
        reads = {}
        last = {}
        for forward in plan.forwards:
            assert forward.batched or len(forward.windows) == 1
            assert not forward.batched or [w.row for w in forward.windows] == list(self.batch)
            for window in forward.windows:
                reads[window.row] = read = self._pass(
                    window, (self.batch if forward.batched else self.single)
                )
                if read.sampled:
                    last[window.row] = read.sampled[-1]
        self._last = last
        return reads

    def _apply(self, op: object) -> None:
        match op:
            case Open(row=row):
                assert row not in self.single
                self.single[row] = []
            case Restore(row=row, pieces=pieces, length=length):
                self.single[row] = self._built([self.kept[id] for id in pieces], length)
            case Rewind(row=row, length=length):
                held = self.batch[row] if row in self.batch else self.single[row]
                assert length < len(held)
                del held[length:]
            case Merge(rows=rows):
                self.batch.update({row: self.single.pop(row) for row in rows})
            case Extract(row=row):
                self.single[row] = list(self.batch[row])
            case Filter(keep=keep):
                self.batch = {row: self.batch[row] for row in keep}
            case Save(row=row, pieces=pieces):
                held = self.single[row]
                assert all(piece.stop <= len(held) for piece in pieces)
                self.kept.update(
                    {piece.id: (piece, held[piece.start : piece.stop]) for piece in pieces}
                )
            case Drop(row=row):
                self.single.pop(row, None)
            case Evict(pieces=pieces):
                for id in pieces:
                    del self.kept[id]

    @staticmethod
    def _built(parts: list[tuple[Piece, list[int]]], length: int) -> list[int]:
        held: list[int] = []
        for piece, tokens in sorted(parts, key=lambda part: part[0].start):
            if piece.kind == "rows":
                assert piece.start == len(held)
                held += tokens
        return held[:length]

    def _pass(self, window: Window, rows: dict[int, list[int]]) -> Read:
        held = rows[window.row]
        assert len(held) == window.start
        tokens = [self._last[window.row]] if window.tokens == LAST else list(window.tokens)
        read = [*tokens, *(window.draft or ())]
        assert len(read) == window.width >= 1
        held += read
        if not window.sample:
            return Read()
        return Read(tuple(token + 1 for token in read[-window.draft_n - 1 :]), window.draft or ())


class Desk:
    """A scheduler over a `Device`, stepped the way EngineLoop does it.

    `asked`, `plans` and `events` are kept. A token takes a byte here, and `elsewhere` bytes on
    another rank.
    """

    def __init__(
        self,
        limits: Limits,
        traits: Traits = PLAIN,
        drafters: tuple[Drafter, ...] = (),
        unbatchable: Reason | None = None,
        clock: Callable[[], float] = lambda: 1.0,
        memory: MemoryGuard | None = None,
        elsewhere: int = 0,
    ) -> None:
        self.device = Device()
        sizes: CacheSizes = self.device
        if elsewhere:
            sizes = StageSizes(self.device.length, Layout(1), Layout(elsewhere))
        layout = Layout(
            elsewhere or 1, state_bytes=9 * traits.recurrent, recurrent=traits.recurrent
        )
        prefix = PrefixReuse(layout, limits.block_tokens, limits.prefix_bytes)
        speculator = Speculator(
            drafters, draft_length=DraftLength.exactly(limits.num_draft_tokens or 0)
        )
        self.scheduler = Scheduler(
            limits, traits, speculator, prefix, sizes, unbatchable, clock, memory
        )
        self.asked: dict[str, Request] = {}
        self.plans: list[Plan] = []
        self.events: list[Event] = []
        self._flight: tuple[Plan, dict[int, Read]] | None = None

    def submit(self, *requests: Request) -> Desk:
        for one in requests:
            self.scheduler.submit(one)
            self.asked[one.id] = one
        return self

    def step(self) -> Plan | None:
        scheduler = self.scheduler
        if self._flight is None:
            self.events += scheduler.reap()
        step = scheduler.plan()
        if step is None and self._flight is not None:
            self._commit()
            self.events += scheduler.reap()
            step = scheduler.plan()
        plan, launched = None, None
        if step is not None:
            plan = step.plan
            launched = (plan, self.device.launch(plan))
            self.plans.append(plan)
        self._commit()
        self._flight = launched
        self.check()
        return plan

    @property
    def busy(self) -> bool:
        return self.scheduler.has_work or self._flight is not None

    def until(self, reached: Callable[[], object]) -> Desk:
        for _ in range(5000):
            if reached():
                return self
            self.step()
        raise AssertionError("the scheduler does not come to an end")

    def run(self, *requests: Request) -> Desk:
        return self.submit(*requests).until(lambda: not self.busy)

    def proven(self, *names: str) -> Desk:
        """Prove that requests, all if none is named, said all of their answers."""
        for name in names or self.asked:
            one = self.asked[name]
            assert self.said(name) == answer(one, one.max_tokens or 0), name
        return self

    def check(self) -> None:
        self.scheduler.check()
        if self.scheduler.ops.next:
            return
        for row in self.scheduler.running:
            held = {**self.device.single, **self.device.batch}[row.id]
            assert len(held) == row.computed
            known = min(len(held), len(row.tokens))
            if not row.unverified:
                assert held[:known] == row.tokens[:known]

    def said(self, name: str) -> list[int]:
        """Return the output tokens of a request."""
        tokens: list[int] = []
        for event in self.events:
            if isinstance(event, TokensCommitted) and event.request_id == name:
                tokens += event.tokens
        return tokens

    @property
    def finished(self) -> dict[str, Finished]:
        return {event.request_id: event for event in self.events if isinstance(event, Finished)}

    def stats(self, name: str) -> RequestStats:
        return self.finished[name].stats

    @property
    def windows(self) -> list[Window]:
        """The windows of all plans, in order."""
        return list(chain.from_iterable(plan.windows for plan in self.plans))

    def ops(self, kind: type[T]) -> list[T]:
        """Return the operations of one kind of all plans, in order."""
        ops = chain.from_iterable(plan.ops for plan in self.plans)
        return [op for op in ops if isinstance(op, kind)]

    def count(self, status: Status) -> int:
        return sum(s.status is status for s in self.scheduler.running)

    def _commit(self) -> None:
        if self._flight is not None:
            self.events += self.scheduler.commit(*self._flight)
            self._flight = None


def ask(name: str, prompt: int = 3, max_tokens: int | None = 5, **more: object) -> Request:
    """A request whose prompt counts up to a multiple of 1000, so that its answer is that and what
    follows.
    """
    start = 1000 * (1 + sum(map(ord, name)) % 97)
    tokens = tuple(range(start - prompt, start))
    return Request(name, tokens, Sampling(temperature=0.0), max_tokens, **more)


def answer(of: Request, n: int) -> list[int]:
    return list(range(of.tokens[-1] + 1, of.tokens[-1] + 1 + n))
