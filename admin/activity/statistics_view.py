"""The usage of many days as plain data: by day, by model, by API key, and in all.

**Time saved by drafts**: of each answer with drafts, the time of decoding × (speed-up - 1).
**Time saved by prefixes**: cached prompt tokens × the time of one computed prompt token of the
model, measured in those of its requests of which most was computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, TypeAlias

from omlx.telemetry.usage import Sums, Usage

RANGES: Final = (7, 30, 90, 365)
"""Days to choose from."""

_Pace: TypeAlias = Mapping[str, float]
"""Seconds per computed prompt token by model, where it is measured."""


@dataclass(frozen=True, slots=True)
class UsageLine:
    """The usage of a day, a model or a key. `prefix_saved_s` is None while nothing is measured."""

    name: str
    usage: Usage
    prefix_saved_s: float | None

    @property
    def cached_share(self) -> float | None:
        if not self.usage.prompt:
            return None
        return self.usage.cached / self.usage.prompt

    @property
    def saved_s(self) -> float:
        """What drafts and prefixes saved; 0 where drafts cost more."""
        return max(0.0, self.usage.draft_saved_s + (self.prefix_saved_s or 0.0))


@dataclass(frozen=True, slots=True)
class Bar:
    """A day of a chart; `share` of its highest bar."""

    day: str
    value: float
    share: float


@dataclass(frozen=True, slots=True)
class StatisticsView:
    """`days` days to today; `by_day` has those with requests, the newest first."""

    days: int
    total: UsageLine
    by_day: Sequence[UsageLine]
    by_model: Sequence[UsageLine]
    by_key: Sequence[UsageLine]
    tokens: Sequence[Bar]
    saved: Sequence[Bar]
    ranges: Sequence[int] = RANGES

    @property
    def first_day(self) -> str:
        return self.tokens[0].day

    @property
    def last_day(self) -> str:
        return self.tokens[-1].day

    @property
    def most_tokens(self) -> float:
        return max(bar.value for bar in self.tokens)

    @property
    def most_saved_s(self) -> float:
        return max(bar.value for bar in self.saved)


def statistics_view(sums: Sums, days: int, today: date) -> StatisticsView:
    pace = _pace(sums)
    by_day = _lines(sums, 0, pace)
    by_name = {line.name: line for line in by_day}
    names = [(today - timedelta(days=back)).isoformat() for back in reversed(range(days))]
    nothing = UsageLine("", Usage(), None)
    lines = [by_name.get(name, nothing) for name in names]
    return StatisticsView(
        days=days,
        total=_line("", sums, pace),
        by_day=by_day[::-1],
        by_model=_largest_first(_lines(sums, 1, pace)),
        by_key=_largest_first(_lines(sums, 2, pace)),
        tokens=_bars(names, [line.usage.predicted for line in lines]),
        saved=_bars(names, [line.saved_s for line in lines]),
    )


def _pace(sums: Sums) -> _Pace:
    measured: defaultdict[str, Usage] = defaultdict(Usage)
    for (_, model, _), usage in sums.items():
        measured[model] += usage
    return {
        model: usage.measured_s / usage.measured_n
        for model, usage in measured.items()
        if usage.measured_n
    }


def _lines(sums: Sums, place: int, pace: _Pace) -> list[UsageLine]:
    """Return a line for each day (place 0), model (1) or key (2), in order."""
    parts: defaultdict[str, dict[tuple[str, str, str], Usage]] = defaultdict(dict)
    for name, usage in sums.items():
        parts[name[place]][name] = usage
    return [_line(name, part, pace) for name, part in sorted(parts.items())]


def _line(name: str, sums: Sums, pace: _Pace) -> UsageLine:
    total = sum(sums.values(), Usage())
    saved = [
        usage.cached * pace[model]
        for (_, model, _), usage in sums.items()
        if usage.cached and model in pace
    ]
    return UsageLine(name, total, sum(saved) if saved else None)


def _largest_first(lines: Iterable[UsageLine]) -> list[UsageLine]:
    return sorted(lines, key=lambda line: -(line.usage.prompt + line.usage.predicted))


def _bars(days: Sequence[str], values: Sequence[float]) -> Sequence[Bar]:
    most = max(values) or 1
    return [Bar(day, value, value / most) for day, value in zip(days, values, strict=True)]
