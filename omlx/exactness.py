"""Exactness: pass widths measured to give the bits of single steps. Pure Python.

`Exactness` is a measurement, `Bounds` the limits of a strict model. Strict answers equal those of
plain decoding alone with the same prompt chunks: passes stay within measured widths, and prompts
are cut at multiples of `grid`, whatever else runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

WINDOWS: Final = range(2, 17)
"""Tokens of one row — measured widths of windows."""

ROWS: Final = range(2, 9)
"""Rows of one token each — measured batch sizes."""

TOLERANCE: Final = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Logits — largest gap that rounding may decide, by the dtype of activations."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Largest absolute difference of logits from single steps, 0 if all bits are equal.

    Maps are empty if the caches cannot be rolled back or merged.
    """

    contexts: tuple[int, ...]  # tokens before each measurement
    windows: Mapping[int, float] = field(default_factory=dict)  # by width in tokens
    rows: Mapping[int, float] = field(default_factory=dict)  # by batch size

    @property
    def width(self) -> int:
        """Widest window in tokens up to which all are equal; 1 if none is."""
        return _equal_up_to(self.windows)

    @property
    def batch(self) -> int:
        """Largest batch in rows up to which all are equal; 1 if none is."""
        return _equal_up_to(self.rows)

    @property
    def difference(self) -> float:
        """Logits — maximum over all windows and batches."""
        return max((*self.windows.values(), *self.rows.values()), default=0.0)

    def to_json(self) -> dict[str, Any]:
        return {
            "contexts": list(self.contexts),
            "windows": {str(width): value for width, value in self.windows.items()},
            "rows": {str(rows): value for rows, value in self.rows.items()},
            "width": self.width,
            "batch": self.batch,
            "difference": self.difference,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Exactness:
        """Parse the output of `to_json`. Raises KeyError, TypeError, ValueError for other input."""
        windows, rows = (
            {int(size): float(value) for size, value in data[name].items()}
            for name in ("windows", "rows")
        )
        if not all(value >= 0 for value in (*windows.values(), *rows.values())):
            raise ValueError("a difference is negative")
        return cls(tuple(map(int, data["contexts"])), windows, rows)


@dataclass(frozen=True, slots=True)
class ExactnessClaim:
    """Promised and measured exactness of a model's answers; None: not measured yet."""

    strict: bool
    measured: Exactness | None

    def to_json(self) -> dict[str, Any]:
        setting = "strict" if self.strict else "ties"
        measured = None if self.measured is None else self.measured.to_json()
        return {"setting": setting, "measured": measured}

    def __str__(self) -> str:
        setting = "strict" if self.strict else "ties"
        if self.measured is None:
            return setting
        return f"{setting}, equal up to {self.measured.width} tokens and {self.measured.batch} rows"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of strict passes."""

    width: int  # tokens: widest window
    rows: int  # largest batch
    grid: int  # tokens: prompts are cut at multiples

    def chunk_end(self, start: int, prompt: int, known: int) -> int:
        """Return the end of the chunk that begins at `start`, of `known` tokens.

        The first `prompt` tokens are read in chunks of the grid, all but the last token. A resumed
        answer's tokens are read again in windows equal to the steps of their generation.
        """
        last = prompt - 1
        if start < last:
            return min(last, (start // self.grid + 1) * self.grid)
        return min(known - 1, start + self.width)

    def floor(self, length: int) -> int:
        return length - length % self.grid


def _equal_up_to(differences: Mapping[int, float]) -> int:
    widest = 1
    while differences.get(widest + 1) == 0.0:
        widest += 1
    return widest
