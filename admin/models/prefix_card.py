"""The card of a model's prefix cache: its size and hits, or why it is off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.records import PrefixStats

from .model_snapshot import ModelSnapshot

STATE: Final = "state"
"""Key of recurrent states in the counts by kind of piece."""


@dataclass(frozen=True, slots=True)
class States:
    """Recurrent states that were stored and restored since the model was loaded."""

    stored: int
    used: int


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """The cache of a model in memory; counts since it was loaded, `evicted` in pieces.

    `share` of the prompt tokens of recent requests came from the cache, None without requests.
    `states` is None for a model without recurrent states; `warning`: every insertion was refused.
    """

    stats: PrefixStats
    share: float | None
    states: States | None
    warning: Reason | None

    @property
    def prompts(self) -> int:
        return self.stats.hits + self.stats.misses

    @property
    def evicted(self) -> int:
        return sum(self.stats.evicted.values())


@dataclass(frozen=True, slots=True)
class PrefixCard:
    """`cache` is None if nothing is cached: `off` says why, unless the model is not in memory."""

    model: str
    cache: PrefixCache | None = None
    off: Reason | None = None


def prefix_card(model: ModelSnapshot) -> PrefixCard:
    stats = model.prefixes
    if stats is None:
        return PrefixCard(model.entry.id)
    if stats.off is not None:
        return PrefixCard(model.entry.id, off=stats.off)
    prompt = sum(request.prompt_n for request in model.recent)
    cached = sum(request.cached_n for request in model.recent)
    states = States(stats.stored.get(STATE, 0), stats.states_used)
    cache = PrefixCache(
        stats,
        share=cached / prompt if prompt else None,
        states=states if states != States(0, 0) else None,
        warning=stats.warning,
    )
    return PrefixCard(model.entry.id, cache)
