"""A second runner beside a loop: it knows of each step only what a plan says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from omlx.engine.device.caches import CacheTable
from omlx.engine.device.runner import Runner
from omlx.engine.step.plan import Plan, Step, Window
from omlx.engine.types import Request
from omlx.engine.vision.spans import PreparedImage
from tests.engine.fakes import same_arrays, same_state
from tests.engine.harness import Bench

ALL = slice(None)


class Replay:
    """Steps `bench` and carries out each of its plans, as bytes, by `runner` too; it has `images`.

    After every step the caches of the bench's runner equal those of the layers `own` of this one;
    None: they are not comparable. `plans` have the draft tokens that were left to the device.
    """

    def __init__(
        self,
        bench: Bench,
        runner: Runner,
        own: slice | None = ALL,
        images: Mapping[str, PreparedImage] | None = None,
    ) -> None:
        self.bench = bench
        self.runner = runner
        self.plans: list[Plan] = []
        self._own = own
        self._images = images or {}
        self._seen: object = None

    @property
    def ops(self) -> set[str]:
        """The kinds of cache operations so far."""
        return {op.op for plan in self.plans for op in plan.ops}

    def run(self, *requests: Request) -> None:
        self.bench.submit(*requests)
        while self.bench.loop.has_work:
            self.step()

    def step(self) -> None:
        self.bench.step()
        launch = self.bench.loop._in_flight
        if launch is None or launch is self._seen:
            return
        self._seen = launch
        drafts = {
            row: tuple(draft.tolist())
            for part in launch.passes
            for row, draft in part.drafts.items()
        }
        plan = with_drafts(launch.plan, drafts)
        sent = Plan.from_bytes(plan.to_bytes())
        assert sent == plan
        self.plans.append(sent)
        self.runner.launch(Step(sent, images=self._images))
        if self._own is not None:
            agree(self.runner.caches, self.bench.loop.runner.caches, self._own)


def with_drafts(plan: Plan, drafts: dict[int, tuple[int, ...]]) -> Plan:
    """Return a plan with device drafts replaced by the ids that were read, by row."""

    def read(window: Window) -> Window:
        known = drafts.get(window.row)
        return window if known is None else replace(window, draft=known)

    forwards = [replace(f, windows=tuple(map(read, f.windows))) for f in plan.forwards]
    return replace(plan, forwards=tuple(forwards))


def agree(whole: CacheTable, held: CacheTable, own: slice = ALL) -> None:
    """Prove that `held` is bit-equal to the layers `own` of the caches of a whole model."""
    whole.check()
    assert whole.lengths == held.lengths
    assert whole.members == held.members
    assert list(whole.single) == list(held.single)
    for row, cache in whole.single.items():
        assert same_state(cache.layers[own], held.single[row].layers), row
    if whole.batch is not None and held.batch is not None:
        assert same_state(whole.batch.layers[own], held.batch.layers)
    assert set(whole.kept) == set(held.kept)
    if own == ALL:  # elsewhere a piece has other layers
        for piece in whole.kept:
            left, right = whole.kept[piece], held.kept[piece]
            assert (left.start, left.stop) == (right.start, right.stop), piece
            assert same_arrays(left.payload.arrays, right.payload.arrays), piece
