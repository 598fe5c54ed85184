"""Exactness: at which widths passes were measured to give the bits of single steps. Pure Python.

`Exactness` is a measurement, `Bounds` what a strict model makes of it. Strict answers are those of
plain decoding alone whose prompt is read in the same chunks: passes stay within measured widths,
and prompts are cut at multiples of `grid`, whatever else runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

WINDOWS: Final = range(2, 17)
"""Widths of windows that are measured, in tokens of one row."""

ROWS: Final = range(2, 9)
"""Sizes of batches that are measured, in rows of one token each."""

TOLERANCE: Final = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""Largest gap in logits that rounding may decide, by the dtype of activations."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """The largest absolute difference of logits from single steps, 0 where all bits are equal.

    `windows` are by width in tokens, `rows` by batch size; none where the caches cannot be rolled
    back or merged. Measured behind each of `contexts` tokens.
    """

    contexts: tuple[int, ...]
    windows: Mapping[int, float] = field(default_factory=dict)
    rows: Mapping[int, float] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The widest window up to which all are equal, in tokens; 1 if none is."""
        return _equal_up_to(self.windows)

    @property
    def batch(self) -> int:
        """The largest batch up to which all are equal, in rows; 1 if none is."""
        return _equal_up_to(self.rows)

    @property
    def difference(self) -> float:
        """The largest difference, in logits."""
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
        """Raises KeyError, TypeError, ValueError for anything that `to_json` did not return."""
        windows, rows = (
            {int(size): float(value) for size, value in data[name].items()}
            for name in ("windows", "rows")
        )
        if not all(value >= 0 for value in (*windows.values(), *rows.values())):
            raise ValueError("a difference is negative")
        return cls(tuple(map(int, data["contexts"])), windows, rows)


@dataclass(frozen=True, slots=True)
class ExactnessClaim:
    """What is promised of a model's answers, and what was measured; None: nothing yet."""

    strict: bool
    measured: Exactness | None

    def to_json(self) -> dict[str, Any]:
        setting = "strict" if self.strict else "ties"
        measured = None if self.measured is None else self.measured.to_json()
        return {"setting": setting, "measured": measured}

    def __str__(self) -> str:
        """The claim in a receipt: the setting, with the widths at which bits were equal."""
        setting = "strict" if self.strict else "ties"
        if self.measured is None:
            return setting
        return f"{setting}, equal up to {self.measured.width} tokens and {self.measured.batch} rows"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What strict passes keep to: the widest window, the most rows of a batch, the prompt's grid.

    `width` and `grid` in tokens.
    """

    width: int
    rows: int
    grid: int

    def chunk_end(self, start: int, prompt: int, known: int) -> int:
        """Return where the chunk that begins at `start` ends, of `known` tokens.

        The first `prompt` are read in chunks of the grid, all but the last one; what a resumed
        answer has is read again in windows that equal the steps that made it.
        """
        last = prompt - 1
        if start < last:
            return min(last, (start // self.grid + 1) * self.grid)
        return min(known - 1, start + self.width)

    def floor(self, length: int) -> int:
        """Return the largest multiple of the grid up to `length`."""
        return length - length % self.grid


def _equal_up_to(differences: Mapping[int, float]) -> int:
    widest = 1
    while differences.get(widest + 1) == 0.0:
        widest += 1
    return widest
