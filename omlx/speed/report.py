"""A benchmark as JSON: shown while it runs, stored, exported."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from omlx.errors import Reason
from omlx.measure.spread import Spread
from omlx.speed.benchmark import Benchmark, Figures
from omlx.speed.points import Mode, Point

Json = dict[str, Any]


def report(benchmark: Benchmark) -> Json:
    """Return the state of a benchmark. What is not measured is null; rates in tokens per second."""
    now = benchmark.now
    return {
        "id": benchmark.id,
        "model": benchmark.model,
        "longest": benchmark.longest,
        "state": benchmark.state.value,
        "reason": _reason(benchmark.reason),
        "share": round(benchmark.share, 4),
        "left_s": None if benchmark.left_s is None else round(benchmark.left_s, 1),
        "discarded": benchmark.discarded,
        "now": None if now is None else {**_point(now.point), "mode": now.mode.value},
        "draft": benchmark.draft,
        "drafters": list(benchmark.drafters),
        "no_drafts": _reason(benchmark.no_drafts),
        "rows": [_row(benchmark, point) for point in benchmark.points],
        "left_out": [
            {**_point(left.point), "reason": _reason(left.reason)} for left in benchmark.left_out
        ],
    }


def _row(benchmark: Benchmark, point: Point) -> Json:
    figures = [found for place, found in benchmark.figures.items() if place.point == point]
    drafted = _of(benchmark, point, Mode.DRAFTED)
    rates = [found.acceptance for found in drafted if found.acceptance is not None]
    return {
        **_point(point),
        "prefill": _median(found.prefill for found in figures),
        "first_s": _median((found.first_s for found in figures), digits=3),
        "plain": _spread(_of(benchmark, point, Mode.PLAIN)),
        "drafted": _spread(drafted),
        "acceptance": _median(rates, digits=3),
        "memory_bytes": max((found.memory_bytes for found in figures), default=None),
    }


def _of(benchmark: Benchmark, point: Point, mode: Mode) -> list[Figures]:
    return [
        found
        for place, found in benchmark.figures.items()
        if (place.point, place.mode) == (point, mode)
    ]


def _median(values: Iterable[float | None], digits: int = 1) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), digits) if known else None


def _spread(figures: Iterable[Figures]) -> Json | None:
    rates = [found.decode for found in figures if found.decode is not None]
    if not rates:
        return None
    spread = Spread.of(rates)
    return {
        "low": round(spread.low, 1),
        "median": round(spread.median, 1),
        "high": round(spread.high, 1),
    }


def _point(point: Point) -> Json:
    return {"tokens": point.tokens, "streams": point.streams}


def _reason(reason: Reason | None) -> Json | None:
    return None if reason is None else {"code": reason.code, "params": dict(reason.params)}
