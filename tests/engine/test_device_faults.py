"""Errors of the device, at every site and in any company: no wrong token leaves the engine, and
none stays in a cache, in memory or on disk.

One failure is made good: what it hit is computed again. The slow lane lets every use of a site
fail, the fast one some of them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest

from omlx.engine.device_errors import DEVICE, FaultKind, isolate
from omlx.engine.loop import EngineLoop
from omlx.engine.memory import MemoryGuard
from omlx.engine.speculation.strategy import DRAFT, NGRAM, OFF
from omlx.engine.types import Request, Speculation
from omlx.models.texts import Embedding
from tests import lanes
from tests.engine.disk.restarts import LONG, started
from tests.engine.faults import IGNORED, INTERACTIVITY, OUT_OF_MEMORY, FailingDevice
from tests.engine.harness import LIMITS, Bench, loop_of, noisy, plain, prompt, request, unassisted
from tests.lanes import few

SHORT = replace(LIMITS, prefill_chunk=24, prefill_slice=8)
STRATEGIES = {"draft": DRAFT, "ngram": NGRAM, "plain": OFF}
COMPANIES = {
    "alone": ("a",),
    "two rows": ("a", "b"),
    "beside a prompt": ("a", "long"),
    "two rows beside a prompt": ("a", "b", "long"),
    "two prompts": ("long", "other"),
}
"""Requests by name; those after the first come when it decodes, or at once if it is long."""
TEXTS = {"next launch": INTERACTIVITY, "anyone": None, "no memory": OUT_OF_MEMORY}
QUICK = {
    "draft": ("beside a prompt", "two rows beside a prompt", "two prompts"),
    "ngram": ("two rows beside a prompt",),
    "plain": ("two rows beside a prompt",),
}
"""Companies of the fast lane: rows that draft fail in all ways in which others do."""
STRIDES = {"prefill": 8, "save": 8, "decode": 30, "draft": 50}
"""The fast lane lets one use of a site in so many fail."""


def named(name: str, strategy: str = "draft", again: str = "") -> Request:
    length = 70 if name in ("long", "other") else 13
    tokens = prompt(length, sorted(("a", "b", "long", "other")).index(name))
    speculation = Speculation(STRATEGIES[strategy])
    return request(name + again, tokens, max_tokens=14, speculation=speculation)


def prove(family: str, bench: Bench, names: tuple[str, ...], again: str = "") -> None:
    for name in names:
        assert bench.tokens[name + again] == plain(family, unassisted(named(name))), name + again
    assert not bench.failed


@contextmanager
def failing(site: str, nth: int, text: str | None, times: int = 1) -> Iterator[FailingDevice]:
    with pytest.MonkeyPatch.context() as patch:
        yield FailingDevice(patch, site, nth, text, times)
    DEVICE.reset()


def run_company(bench: Bench, names: tuple[str, ...], strategy: str) -> None:
    first, *others = (named(name, strategy) for name in names)
    bench.submit(first)
    if first.id != "long":
        bench.until(lambda: len(bench.tokens[first.id]) >= 2)
    bench.run(*others)


def cases() -> Iterator[object]:
    sites = ("prefill", "decode", "draft", "save")
    families = ("llama", "qwen3_next", "gemma3_text")
    for number, (strategy, company, site) in enumerate(product(STRATEGIES, COMPANIES, sites)):
        if site == "draft" and strategy != "draft":
            continue
        for at, family in enumerate(families):
            for turn, text in enumerate(TEXTS):
                case = (family, strategy, company, site, text)
                place = (number, strategy, company, site)
                in_turn = (number + at) % 3 == 0 and (number // 3 + turn) % 3 == 0
                if in_turn and company in QUICK[strategy]:
                    yield pytest.param(*case, first_use(*place), STRIDES[site])
                yield pytest.param(*case, 0, 1, marks=pytest.mark.slow)


def first_use(number: int, strategy: str, company: str, site: str) -> int:
    """A use that nearly every case has: drafting rows decode rarely, one row has one prefill."""
    if site == "draft" or (site == "decode" and strategy != "draft"):
        return number % 20
    return number % 3 if company != "alone" and site != "decode" else 0


@pytest.mark.parametrize(
    ("family", "strategy", "company", "site", "text", "first", "every"), [*cases()]
)
def test_a_failed_pass_leaves_no_wrong_token(
    family: str, strategy: str, company: str, site: str, text: str, first: int, every: int
) -> None:
    names = COMPANIES[company]
    for nth in count(first, every):
        with failing(site, nth, TEXTS[text]) as device:
            draft = noisy(family) if strategy == "draft" else None
            bench = Bench(device.serve(loop_of(family, draft, limits=SHORT)))
            run_company(bench, names, strategy)
            prove(family, bench, names)
            bench.run(*(named(name, strategy, " again") for name in names))
            prove(family, bench, names, " again")
            assert device.struck or nth > first or not device.uses
            assert DEVICE.lost is None
            if nth + every >= device.uses:
                return


@pytest.mark.parametrize(
    ("site", "text"),
    few(
        product(("prefill", "decode", "save"), TEXTS),
        ("decode", "anyone"),
        ("save", "no memory"),
    ),
)
def test_an_error_that_another_model_gets_condemns_both_models_steps(site: str, text: str) -> None:
    families = ("llama", "qwen3_next")
    for nth in range(0, 40, 8 if lanes.slow else 16):
        with failing(site, nth, TEXTS[text]) as device:
            benches = [Bench(device.serve(loop_of(name, limits=SHORT))) for name in families]
            for bench in benches:
                bench.submit(named("a", "plain"), named("long", "plain"))
            take_turns(benches)
            for bench in benches:
                bench.submit(named("a", "plain", " again"), named("long", "plain", " again"))
            take_turns(benches)
            for family, bench in zip(families, benches, strict=True):
                prove(family, bench, ("a", "long"))
                prove(family, bench, ("a", "long"), " again")
            if not device.struck:
                break
    assert nth > 0, "no case has struck"


def take_turns(benches: list[Bench]) -> None:
    """Step loops one after another, as the engine thread does."""
    while any(bench.loop.has_work for bench in benches):
        for bench in benches:
            if bench.loop.has_work:
                bench.step()


@pytest.mark.parametrize("text", few(TEXTS, "anyone"))
@pytest.mark.parametrize("site", few(("prefill", "decode", "text"), "decode", "text"))
def test_a_text_that_is_embedded_takes_no_error_for_good_and_leaves_none(
    site: str, text: str
) -> None:
    want = embedded(loop_of("llama", limits=SHORT))
    for nth in range(0, 12, 1 if lanes.slow else 4):
        with failing(site, nth, TEXTS[text]) as device:
            bench = Bench(device.serve(loop_of("llama", limits=SHORT)))
            bench.submit(named("a", "plain"), named("long", "plain"))
            got = embedded(bench.loop, bench, device)
            bench.run()
            prove("llama", bench, ("a", "long"))
            assert got == want
            assert DEVICE.lost is None
            assert device.struck or nth > 0


def embedded(
    loop: EngineLoop, bench: Bench | None = None, device: FailingDevice | None = None
) -> tuple[float, ...]:
    """The vector of a text that is read in chunks between the steps of other requests."""
    text = Embedding(prompt(40, 3), "mean")
    while True:
        if bench is not None and bench.loop.has_work:
            bench.step()
        if device is not None and device.strikes("text"):
            device.fail_next()
        if text.step(loop.for_texts, MemoryGuard()):
            return text.vector


@pytest.mark.parametrize(
    ("family", "text"),
    few(product(("llama", "qwen3_next", "gemma3_text"), TEXTS), ("qwen3_next", "next launch")),
)
@pytest.mark.parametrize("site", ["prefill", "decode", "save", "dump", "load", "restore"])
def test_nothing_wrong_is_on_disk_after_a_failure(
    family: str, text: str, site: str, tmp_path: Path
) -> None:
    names = ("a", "long")
    limits = replace(LONG, prefill_chunk=24, prefill_slice=8)
    later = {"load": (), "restore": (1,)}.get(site, (3,))  # what has come is loaded at once
    for nth in (0, *later):
        root = tmp_path / str(nth)
        with started(family, root, limits=limits) as bench:
            bench.run(named("long", "plain", " before"))
        with failing(site, nth, TEXTS[text]) as device:
            with started(family, root, limits=limits) as bench:
                device.serve(bench.loop)
                bench.run(named("a", "plain"), named("long", "plain"), named("other", "plain"))
                prove(family, bench, (*names, "other"))
                bench.run(*(named(name, "plain", " from memory") for name in names))
                prove(family, bench, names, " from memory")
            assert device.struck
        with started(family, root, limits=limits) as bench:
            bench.run(*(named(name, "plain", " again") for name in (*names, "other")))
            prove(family, bench, (*names, "other"), " again")


@pytest.mark.parametrize("text", [INTERACTIVITY, OUT_OF_MEMORY])
def test_a_row_that_fails_twice_ends_with_a_code_and_leaves_nothing(text: str) -> None:
    with failing("prefill", 1, text, times=2) as device:
        bench = Bench(device.serve(loop_of("llama", limits=SHORT))).run(named("long", "plain"))
        error = bench.failed["long"].error
        if text is OUT_OF_MEMORY:
            assert (error.code, error.status) == ("device.prompt_memory", 400)
            assert DEVICE.lost is None, "a device survives that its memory is full"
        else:
            assert error.code == "device.failed"
            assert DEVICE.lost is not None, "two failures without a good pass in between"
        bench.run(named("long", "plain", " again"))
        assert bench.tokens["long again"] == plain("llama", named("long", "plain"))


def test_failures_with_good_passes_in_between_end_nothing() -> None:
    with failing("decode", 0, INTERACTIVITY) as device:
        bench = Bench(device.serve(loop_of("llama", limits=SHORT))).submit(named("a", "plain"))
        for _ in range(3):
            device.nth = device.uses + 3  # a pass in flight falls with the one before it
            bench.until(lambda: device.uses > device.nth)
        bench.run()
        assert device.struck == 3
        prove("llama", bench, ("a",))
        assert bench.stats("a").restarts == 3
        assert DEVICE.lost is None


def test_a_device_that_ignores_work_is_lost_at_once() -> None:
    with failing("decode", 3, IGNORED) as device:
        bench = Bench(device.serve(loop_of("llama", limits=SHORT)))
        bench.submit(named("a", "plain")).until(lambda: DEVICE.seen > 0)
        assert DEVICE.lost.params["kind"] == FaultKind.IGNORED


def test_the_frames_of_an_error_of_the_device_hold_nothing() -> None:
    """They would hold caches and graph of a failed pass until a collection of garbage."""

    class Cache:
        pass

    def compute() -> None:
        cache = Cache()
        held.append(weakref.ref(cache))
        raise RuntimeError(OUT_OF_MEMORY)

    held: list[weakref.ref[Cache]] = []
    gc.disable()
    try:
        with isolate() as outcome:
            compute()
        assert outcome.error is not None
        assert held[0]() is None
    finally:
        gc.enable()
        DEVICE.reset()


def test_a_dead_device_is_noticed_by_requests_that_are_not_tried_twice() -> None:
    """Steps that only free a row, between them, prove nothing of the device."""
    with failing("prefill", 0, INTERACTIVITY, times=1 << 30) as device:
        bench = Bench(device.serve(loop_of("llama", limits=SHORT)))
        for i in range(2):
            bench.run(replace(named("long", "plain", f" {i}"), prompt_logprobs=0))
        assert DEVICE.lost is not None


def test_rows_that_are_computed_again_keep_their_order_and_their_figures() -> None:
    with failing("decode", 2, INTERACTIVITY) as device:
        bench = Bench(device.serve(loop_of("llama", limits=SHORT)))
        rows = [request(name, prompt(13, i), max_tokens=14) for i, name in enumerate("abc")]
        bench.submit(*rows).until(lambda: DEVICE.seen > 0)
        waiting = [row.request.id for row in bench.loop.scheduler.queue.waiting]
        assert waiting == sorted(waiting)
        bench.run().proven("llama")
        assert [bench.stats(one.id).cached_n for one in rows] == [0] * 3
