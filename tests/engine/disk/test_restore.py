"""Prefixes on disk: after a restart a hit gives the same tokens as a cold start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from omlx.engine.disk import tier
from omlx.engine.disk.tier import DiskThresholds
from omlx.engine.step.row import Row
from omlx.engine.types import Sampling
from tests.engine.disk.restarts import LONG, DiskBench, started
from tests.engine.harness import (
    GREEDY,
    HEATED,
    label,
    model,
    prompt,
    request,
    stored_length,
)
from tests.lanes import few

QUICK = ("llama_quantized", "gemma3_text", "qwen3_next", "recurrent_gemma")
"""Every kind of cache."""


@pytest.mark.parametrize(
    ("family", "sampling"), few(HEATED, *((name, GREEDY) for name in QUICK)), ids=label
)
def test_after_a_restart_a_prompt_comes_from_disk(
    family: str, sampling: Sampling, tmp_path: Path
) -> None:
    asked = request("a", prompt(53), sampling, max_tokens=12, stable=44)
    with started(family, tmp_path) as bench:
        bench.run(asked)
        anywhere = bench.loop.scheduler.prefix.layout.resumes_anywhere
    with started(family, tmp_path) as bench:
        bench.run(asked).proven(family, asked)
        assert bench.stats().cached_n == (52 if anywhere else 44)
        assert bench.loop.prefix_stats.disk.hits == 1
        follow_up = request("b", (*asked.tokens, *bench.tokens["a"], 5, 6), sampling)
        bench.run(follow_up).proven(family, follow_up)


def test_a_prompt_that_is_not_on_disk_waits_for_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "LOOKUP_S", 60.0)
    with started("llama", tmp_path) as bench:
        bench.submit(request("stream", prompt(9), max_tokens=400))
        bench.until(lambda: len(bench.tokens["stream"]) > 4)
        bench.submit(request("new", prompt(300), max_tokens=1))
        bench.until(lambda: len(bench.loop.scheduler.running) == 2)
        assert [row.restoring for row in bench.loop.scheduler.running] == [False, False]


def started_rows(bench: DiskBench) -> list[Row]:
    return [row for row in bench.loop.scheduler.running if not row.restoring]


@pytest.mark.parametrize("family", few(("llama", "gemma3_text", "qwen3_next"), "qwen3_next"))
def test_after_a_restart_the_draft_model_continues_too(family: str, tmp_path: Path) -> None:
    first = request("a", prompt(300), max_tokens=12, stable=290)
    with started(family, tmp_path, draft=model(family)) as bench:
        bench.run(first)
    follow_up = request("b", (*first.tokens, *bench.tokens["a"], 5, 6), max_tokens=20)
    with started(family, tmp_path, draft=model(family)) as bench:
        bench.submit(follow_up).until(lambda: bool(started_rows(bench)))
        (row,) = started_rows(bench)
        fetches = bench.loop.scheduler.speculator.drafters[1]._prefixes._disk._fetches
        fetch = fetches.get(row.id)  # its last record, which else may come when all is said
        bench.wait(lambda: fetch is None or fetch.length is not None)
        bench.run().proven(family, follow_up)
        assert bench.stats("b").cached_n > 300
        assert bench.stats("b").accepted == bench.stats("b").proposed > 10
        drafts = bench.loop.disks[1].stats()
        assert drafts.hits == 1
        assert drafts.hit_tokens > 280


@pytest.mark.parametrize("family", few(("llama", "gemma3_text", "qwen3_next"), "qwen3_next"))
def test_a_row_that_waits_for_the_disk_holds_up_no_other(family: str, tmp_path: Path) -> None:
    """One decodes, one is read from disk, and one is given up while it waits."""
    stored = [request(name, prompt(120, salt), max_tokens=8) for name, salt in (("a", 1), ("b", 2))]
    with started(family, tmp_path) as bench:
        bench.run(*stored)
    other = request("c", prompt(20, 3), max_tokens=30)
    with started(family, tmp_path) as bench:
        bench.submit(other).until(lambda: len(bench.tokens["c"]) >= 4)
        bench.submit(*stored)
        bench.step()
        bench.loop.cancel("b")
        bench.run()
        bench.proven(family, stored[0], other)
        assert bench.stats("a").cached_n > 100
        bench.run(again := request("d", stored[1].tokens, max_tokens=8)).proven(family, again)
        assert bench.stats("d").cached_n > 100


@pytest.mark.parametrize("drafts", few([False, True], True))
def test_a_hit_that_ends_inside_a_block_does_not_store_what_is_behind_it(
    drafts: bool, tmp_path: Path
) -> None:
    """The block holds rows of the prompt that filled it: they are no rows of the shorter one."""
    family = "qwen3_next"
    draft = model(family) if drafts else None
    setup = {"limits": replace(LONG, block_tokens=64), "thresholds": DiskThresholds()}
    short = prompt(220)
    turns = [request("a", prompt(300), max_tokens=4)]
    turns += [request(name, short, max_tokens=4) for name in ("b", "b again")]
    longer = [request(f"c{i}", (*short, *prompt(400, i)), max_tokens=8) for i in range(1, 3)]
    with started(family, tmp_path, draft, **setup) as bench:
        for one in (*turns, *longer):
            bench.run(one)
    with started(family, tmp_path, draft, **setup) as bench:
        for one in longer:
            bench.run(one).proven(family, one)
            assert bench.stats(one.id).cached_n == len(one.tokens) - 1
            assert stored_length(bench.loop, one.tokens) >= len(one.tokens) - 1
