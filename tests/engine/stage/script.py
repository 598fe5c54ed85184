"""What a staged model and the same model in one process are asked, and how they are compared.

Drafts on the device, lookups, rejections, merges, prefixes, sampling, masks, penalties, logprobs,
several choices of one prompt, and a cancel in every state of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain

from mlx import nn

from omlx.engine.device.model import cache_maker
from omlx.engine.device.runner import Runner
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.strategy import NGRAM
from omlx.engine.step.plan import LAST, Window
from omlx.engine.step.row import Row, Status
from omlx.engine.types import (
    Event,
    PrefillProgress,
    Request,
    Speculation,
    TokenLogprob,
    TokensCommitted,
)
from tests.engine.fakes import Corrupted
from tests.engine.harness import GREEDY, WARM, Bench, prompt, request, unassisted
from tests.engine.masks import Ruled, formal, until
from tests.engine.replay import Replay
from tests.zoo import VOCAB_SIZE

PENALISED = replace(
    WARM,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias=((7, 2.0),),
)
MAX_ROWS = 4


class Play:
    """Runs the script on one loop, its plans replayed on `whole`; see `Replay` for `own`."""

    def __init__(self, loop: EngineLoop, whole: nn.Module, own: slice | None) -> None:
        self.bench = Bench(loop)
        runner = Runner(whole, VOCAB_SIZE, cache_maker(whole))
        self._replay = Replay(self.bench, runner, own)
        if loop.scheduler.speculator.off_reason is None:
            wrong = Corrupted(whole, lambda position: position % 5 == 2)
            loop.use_drafters([NgramDrafter(), wrong])

    def run(self, *asked: Request, cancel: Mapping[str, Callable[[Play, str], bool]]) -> None:
        """Run requests to their end, but for those of `cancel`: they are cancelled in a state."""
        self.bench.submit(*asked)
        left = dict(cancel)
        while self.bench.loop.has_work:
            for name in [name for name, reached in left.items() if reached(self, name)]:
                del left[name]
                self.bench.loop.cancel(name)
            self._replay.step()
        assert not left, f"never reached: {[*left]}"

    def perform(self) -> Bench:
        first = request("a", prompt(13), WARM, max_tokens=40)
        self.bench.submit(first)
        while len(self.bench.tokens["a"]) < 8:
            self._replay.step()
        run = self._replay.run
        run(*(request(f"b{i}", prompt(9 + 5 * i, i), WARM, max_tokens=6) for i in range(2)))
        run(request("c", (*first.tokens, *self.bench.tokens["a"], 3, 4), WARM, max_tokens=6))
        run(request("d", prompt(30, 3), GREEDY, max_tokens=30))
        run(repeating())
        for one in of_every_kind():
            run(one)
        run(*(replace(one, id=f"{one.id}, too") for one in of_every_kind()))
        run(*choices())
        for name, reached in CANCELLED.items():
            drafting = request(name, prompt(30, 7), WARM, max_tokens=24)
            plain = replace(unassisted(drafting), id=f"{name}, plain")
            ends = plain if reached is in_flight else drafting
            self.run(ends, cancel={ends.id: reached})
        full = [request(f"full{i}", prompt(9, i), WARM, max_tokens=9) for i in range(MAX_ROWS + 1)]
        self.run(*full, cancel={full[-1].id: waiting})
        crowd = [request(f"crowd{i}", prompt(9 + i, i), WARM, max_tokens=16) for i in range(3)]
        self.run(*crowd, cancel={"crowd1": in_batch})
        self.bench.loop.clear_prefixes()
        self.run(cancel={})
        return self.bench

    def row(self, name: str) -> Row | None:
        """The row of a request, if it has one."""
        running = self.bench.loop.scheduler.running
        return next((row for row in running if row.request.id == name), None)

    def window(self, name: str) -> Window | None:
        """What the step in flight reads of a request."""
        row, launch = self.row(name), self.bench.loop._in_flight
        if row is None or launch is None:
            return None
        windows = launch.plan.windows
        return next((window for window in windows if window.row == row.id), None)


def of_every_kind() -> list[Request]:
    return [
        request("penalised", prompt(13), PENALISED, max_tokens=16),
        request("masked", prompt(11, 2), WARM, max_tokens=16, mask=Ruled(until(formal, 13))),
        request("scored", prompt(12, 3), WARM, max_tokens=12, top_logprobs=3, prompt_logprobs=2),
        request("plain", prompt(9, 4), WARM, max_tokens=12, speculation=Speculation()),
    ]


def repeating() -> Request:
    """A request that prompt lookup drafts for, rightly and wrongly."""
    period = prompt(7, 5)
    tokens = (*period, *period, *period)
    biased = replace(GREEDY, logit_bias=tuple((token, 20.0) for token in period))
    return request("looked up", tokens, biased, max_tokens=40, speculation=Speculation(NGRAM))


def choices() -> list[Request]:
    """Two choices of one prompt, as `n` = 2 asks for them."""
    tokens = prompt(17, 6)
    sampled = [replace(WARM, choice=number) for number in range(2)]
    return [
        request(f"choice {number}", tokens, sampling, max_tokens=10, group="n", top_logprobs=1)
        for number, sampling in enumerate(sampled)
    ]


def waiting(play: Play, name: str) -> bool:
    rows = len(play.bench.loop.scheduler.running)
    return rows == MAX_ROWS and play.row(name) is None


def in_prefill(play: Play, name: str) -> bool:
    row = play.row(name)
    return row is not None and row.status is Status.PREFILL and row.computed > 0


def in_flight(play: Play, name: str) -> bool:
    """One step is computed on top of another, its input not known to the host."""
    window = play.window(name)
    return window is not None and window.tokens == LAST


def being_verified(play: Play, name: str) -> bool:
    """The draft has been made, its verification has not been read."""
    window = play.window(name)
    return window is not None and window.draft_n > 0


def in_batch(play: Play, name: str) -> bool:
    """As `in_flight`, in company: in one batch where the model's caches merge."""
    batch = play.bench.loop.scheduler.batch
    row = play.row(name)
    if row is None or not row.unread:
        return False
    return batch.off_reason is not None or row.id in batch.members


CANCELLED = {"in prefill": in_prefill, "in flight": in_flight, "being verified": being_verified}
"""Requests that are cancelled in the state that their name says, alone."""


def compared(alone: Bench, staged: Bench) -> dict[str, object]:
    """What differs, and what has been run: plain values for JSON."""
    names = {*alone.finished, *alone.failed, *staged.finished, *staged.failed}
    windows = [window for window in staged.windows if window.draft_n]
    ops = [op.op for plan in staged.plans for op in plan.ops]
    return {
        "different": sorted(
            name for name in names if outcome(alone, name) != outcome(staged, name)
        ),
        "failed": [failure.error.message for failure in staged.failed.values()],
        "logprob_gap": logprob_gap(logprobs(alone), logprobs(staged)),
        "cancelled": sum(one.reason.value == "cancelled" for one in staged.finished.values()),
        "drafted": {
            name: sum(window.draft_n for window in windows if window.drafter == name)
            for name in sorted({str(window.drafter) for window in windows})
        },
        "ops": {name: ops.count(name) for name in sorted(set(ops))},
        "same_plans": alone.plans == staged.plans,
        "plans": len(staged.plans),
    }


def outcome(bench: Bench, name: str) -> tuple[object, list[int]]:
    ended = bench.finished.get(name)
    return ended and ended.reason, bench.tokens[name]


def logprobs(bench: Bench) -> list[list[float]]:
    """Every token that was scored: its logprob and those of the best ones, in order."""
    scored = chain.from_iterable(map(_scores, bench.events))
    return [[one.logprob, *(value for _, value in one.top)] for one in scored]


def _scores(event: Event) -> tuple[TokenLogprob, ...]:
    if isinstance(event, TokensCommitted | PrefillProgress):
        return event.logprobs or ()
    return ()


def logprob_gap(one: list[list[float]], other: list[list[float]]) -> float | None:
    """The largest difference of two logprobs; None if they are not of the same tokens."""
    if [len(values) for values in one] != [len(values) for values in other]:
        return None
    pairs = zip(chain.from_iterable(one), chain.from_iterable(other), strict=True)
    return max(abs(a - b) for a, b in pairs)
