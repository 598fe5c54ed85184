"""Prefixes on disk: after a restart a hit gives the same tokens as a cold start."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.engine.types import Sampling
from tests.engine.disk.restarts import started
from tests.engine.harness import HEATED, label, plain, prompt, request


@pytest.mark.parametrize(("family", "sampling"), HEATED, ids=label)
def test_after_a_restart_a_prompt_comes_from_disk(
    family: str, sampling: Sampling, tmp_path: Path
) -> None:
    asked = request("a", prompt(53), sampling, max_tokens=12, stable=44)
    with started(family, tmp_path) as bench:
        bench.run(asked)
        anywhere = bench.loop.scheduler.prefix.layout.resumes_anywhere
    with started(family, tmp_path) as bench:
        bench.run(asked)
        assert bench.stats().cached_n == (52 if anywhere else 44)
        assert bench.tokens["a"] == plain(family, asked)
        assert bench.loop.prefix_stats.disk.hits == 1
        follow_up = request("b", (*asked.tokens, *bench.tokens["a"], 5, 6), sampling)
        bench.run(follow_up)
        assert bench.tokens["b"] == plain(family, follow_up)
