"""Results of one server as text: for a terminal, as Markdown, as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from omlx import __version__
from omlx.conformance.client import Outcome, Result
from omlx.terminal_text import escaped

_MARKS: Final = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_SUPPORTED: "–"}


@dataclass(frozen=True, slots=True)
class Report:
    url: str
    model: str
    results: Sequence[Result]

    @property
    def passed(self) -> bool:
        return all(result.outcome is not Outcome.FAILED for result in self.results)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells for a terminal, one row per check."""
        return [
            (_MARKS[result.outcome], result.title, result.outcome, result.seen)
            for result in self.results
        ]

    @property
    def summary(self) -> str:
        counted = Counter(result.outcome for result in self.results)
        return ", ".join(f"{counted[outcome]} {outcome}" for outcome in Outcome)

    def markdown(self) -> str:
        place = f"{_cell(self.model)} at {_cell(self.url)}"
        lines = [
            f"{place}, {_today()}, omlx verify {__version__}: {self.summary}",
            "",
            "| check | outcome | seen |",
            "|---|---|---|",
        ]
        lines += [
            f"| {result.title} | {result.outcome} | {_cell(result.seen)} |"
            for result in self.results
        ]
        return "\n".join(lines) + "\n"

    def record(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model,
            "date": _today(),
            "omlx": __version__,
            "checks": [asdict(result) for result in self.results],
        }


def _cell(text: str) -> str:
    """Escape control characters and Markdown in a server's text."""
    for mark in "\\|<>`*_[]":
        text = text.replace(mark, f"\\{mark}")
    return escaped(text)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
