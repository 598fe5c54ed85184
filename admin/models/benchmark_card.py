"""The newest benchmark of a model, in one line of its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.trial.result_store import StoredResult


@dataclass(frozen=True, slots=True)
class BenchmarkCard:
    """Rates in tokens per second of one stream, for a prompt of `tokens`.

    `at` in seconds since the epoch; None throughout before the first benchmark. `decode` is with
    drafts, if there are any.
    """

    model: str
    tokens: int | None = None
    prefill: float | None = None
    decode: float | None = None
    at: float | None = None


def benchmark_card(model: str, runs: Sequence[StoredResult]) -> BenchmarkCard:
    """Describe the shortest prompt of the newest run. `runs`: the newest first."""
    for run in runs:
        for row in run.record["rows"]:
            decode = row["drafted"] or row["plain"]
            if row["streams"] == 1 and row["prefill"] is not None and decode is not None:
                return BenchmarkCard(model, row["tokens"], row["prefill"], decode["median"], run.at)
    return BenchmarkCard(model)
