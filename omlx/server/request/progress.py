"""Progress of a prompt for clients: tokens, share, seconds left. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from omlx.engine.types import PromptForecast

MIN_TOKENS: Final = 512
"""Tokens — shorter prompts, of a single pass, have no forecast and no progress."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` tokens are computed or restored. `seconds_left` None: not known."""

    done: int
    total: int
    seconds_left: float | None

    def to_json(self) -> dict[str, Any]:
        left = self.seconds_left
        return {
            "processed": self.done,
            "total": self.total,
            "share": round(self.done / self.total, 4),
            "seconds_left": None if left is None else round(left, 1),
        }

    def comment(self) -> bytes:
        """Return a comment of a stream of server-sent events."""
        return b": prompt_progress " + json.dumps(self.to_json()).encode() + b"\n\n"


@dataclass(slots=True)
class Reading:
    """Times of a prompt, in monotonic seconds, and the forecast once known."""

    forecast: PromptForecast | None = None
    _first: tuple[float, int] | None = None
    _last: tuple[float, int] = (0.0, 0)

    def note(self, done: int, now: float) -> None:
        """Record `done` computed tokens."""
        if self._first is None:
            self._first = now, done
        self._last = now, done

    def progress(self, total: int, now: float, arrived_at: float) -> Progress:
        """Return the progress: by the pace since the first pass, before by the forecast."""
        at, done = self._last
        left = None
        if self._first is not None and done > self._first[1]:
            pace_s = (at - self._first[0]) / (done - self._first[1])
            left = max(0.0, pace_s * (total - done) - (now - at))
        elif self.forecast is not None:
            done, cached = max(done, self.forecast.cached), self.forecast.cached
            if (seconds := self.forecast.first_token_s) is not None:
                left = max(0.0, seconds - (now - arrived_at))
                if done > cached:  # after the first pass
                    left = seconds * (total - done) / (total - cached)
        return Progress(min(done, total), total, left)
