"""Result of a run: what the clients saw, samples of the server, and whether both are good."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.soak.figures import BOUNDS_PER_HOUR, Figures, Growth, growth, table
from lab.soak.load import Counts


@dataclass
class Result:
    """`loads` counts models loaded, `logged` are errors in the server's log."""

    streams: int
    counts: Counts = field(default_factory=Counts)
    minutes: list[float] = field(default_factory=list)
    samples: list[Figures] = field(default_factory=list)
    loads: int = 0
    logged: list[str] = field(default_factory=list)

    @property
    def series(self) -> dict[str, list[float]]:
        """Samples by figure."""
        return {name: [each[name] for each in self.samples] for name in BOUNDS_PER_HOUR}

    @property
    def grown(self) -> dict[str, Growth]:
        return {name: growth(self.minutes, values) for name, values in self.series.items()}

    @property
    def errors(self) -> list[str]:
        return self.counts.errors + self.logged

    @property
    def passed(self) -> bool:
        grows = any(each.exceeds(BOUNDS_PER_HOUR[name]) for name, each in self.grown.items())
        return not grows and not self.errors

    @property
    def title(self) -> str:
        requests = sum(self.counts.kinds.values())
        return (
            f"{self.minutes[-1]:.0f} minutes, {self.streams} streams, "
            f"{requests:,} requests, {len(self.errors)} errors"
        )

    def __str__(self) -> str:
        counts = self.counts
        kinds = ", ".join(f"{number} {name}" for name, number in sorted(counts.kinds.items()))
        same = ", ".join(f"{number} {name}" for name, number in counts.comparisons.items())
        lines = [
            f"{kinds}; {counts.tokens:,} tokens; {self.loads} times a model was loaded",
            f"compared with the first answer: {same or 'none'}",
            f"{counts.retried} times 503 with Retry-After, sent again",
            table(self.grown),
            *(error[:2000] for error in self.errors[:10]),
            f"{'passed' if self.passed else 'FAILED'}: {self.title}",
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "passed": self.passed,
            "minutes": self.minutes,
            "series": self.series,
            "kinds": self.counts.kinds,
            "comparisons": self.counts.comparisons,
            "tokens": self.counts.tokens,
            "retried": self.counts.retried,
            "loads": self.loads,
            "errors": self.errors,
        }
