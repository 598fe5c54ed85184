"""The length of prefill passes where a slow one is dangerous. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST: Final = 128
"""Tokens of the first pass of a model in stages."""

SHORT_S: Final = 0.75
"""Seconds: Metal ends a command buffer after about 5 s, and one that waits for another machine runs
as long as that one computes. A third of the time is left to a slower neighbour or a longer context.
"""


@dataclass(slots=True)
class PrefillChunk:
    """At most `tokens` in one pass: they double while passes are short, up to `most`."""

    tokens: int
    most: int

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a step that read so many tokens of prompts; shorter steps prove little."""
        if tokens <= self.tokens // 2:
            return
        if seconds < SHORT_S:
            self.tokens = min(self.most, 2 * self.tokens)
        elif seconds > 2 * SHORT_S and self.tokens > FIRST:
            self.tokens = max(FIRST, self.tokens // 2)
