"""What the memory guard asks of a loaded model. Pure Python."""

from __future__ import annotations

from typing import Protocol


class MemoryClient(Protocol):
    """A loaded model, as the guard sees it. Times are of one monotonic clock, in seconds."""

    @property
    def used_at(self) -> float:
        """When its newest request was submitted."""
        ...

    @property
    def reserved(self) -> int:
        """Bytes not yet allocated: prefixes to be saved, and growth of running KV caches up to the
        prompt and some output tokens. Later growth is left to the space above the limits.
        """
        ...

    @property
    def activations(self) -> int:
        """Bytes of the shortest pass over any prompt that is being read."""
        ...

    @property
    def cached(self) -> int:
        """Bytes of cached prefixes, all of which can be evicted."""
        ...

    @property
    def busy(self) -> bool:
        """Whether requests run."""
        ...

    @property
    def freeing(self) -> bool:
        """Whether its next step may free memory."""
        ...

    @property
    def blocked_since(self) -> float | None:
        """When its first request that waits for memory was submitted; None if none does."""
        ...

    def evict_prefixes(self, nbytes: int) -> int:
        """Evict `nbytes` of cached prefixes, or all, with the next step. Return how many bytes."""
        ...
