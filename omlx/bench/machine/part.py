"""A part of the page: a table whose rows are measured one by one, within a time of its own.

What fails is reported where it happened, with the rows before it; the other parts run all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from omlx.bench.progress import Progress
from omlx.bench.report import table
from omlx.engine.device_errors import isolate

Row: TypeAlias = tuple[str, ...]
Expired: TypeAlias = Callable[[], bool]
"""Whether the time of a part is over. A row that has begun is finished."""


@dataclass(frozen=True, slots=True)
class Part:
    """`measure(progress, expired)` yields rows below `head`, and ticks `units` times or less."""

    title: str
    head: Row
    seconds: float
    units: int
    measure: Callable[[Progress, Expired], Iterator[Row]]


def run_parts(
    parts: Sequence[Part], seconds: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[str]:
    """Measure each part and yield its text. `seconds` bound all of them together.

    An interrupt ends the measurement; what was measured until then has been yielded.
    """
    began, done = clock(), 0
    end = began + seconds
    with Progress(sum(part.units for part in parts), "step", end, clock) as progress:
        for part in parts:
            progress.start(part.title)
            deadline = min(end, clock() + part.seconds)
            yield _run(part, progress, partial(_is_over, clock, deadline))
            done += part.units
            progress.reach(done)


def _is_over(clock: Callable[[], float], deadline: float) -> bool:
    return clock() >= deadline


def _run(part: Part, progress: Progress, expired: Expired) -> str:
    if expired():
        return f"{part.title}\nNo time was left.\n"
    rows = [part.head]
    with isolate() as outcome:
        rows.extend(part.measure(progress, expired))
    lines = [part.title, table(rows)]
    if outcome.error is not None:
        lines.append(f"ERROR {type(outcome.error).__name__}: {outcome.error}")
    elif expired():
        lines.append("The time of this part was over: rows may be missing.")
    return "\n".join(lines) + "\n"
