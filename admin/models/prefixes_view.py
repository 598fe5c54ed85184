"""The card of a model's kept prefixes: how much is kept, what it was good for, and why nothing is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.errors import Reason
from omlx.records import PrefixStats, RequestStats

from .model_snapshot import Standing

STATE: Final = "state"
"""The kind of piece that a recurrent state is."""


@dataclass(frozen=True, slots=True)
class States:
    """Recurrent states: so many were stored, and so many taken up, since the model was loaded."""

    stored: int
    used: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept now, in bytes and tokens, and counts since the model was loaded: `hits` of `prompts` began with
    something kept, so that `hit_tokens` were not computed again; `evicted` counts pieces.

    `share` is that of the prompt tokens of the newest answers which came from the cache, None where there are none.
    `states` is None for a model without them. `warning` says that all was refused.
    """

    nbytes: int
    max_bytes: int
    tokens: int
    hits: int
    prompts: int
    hit_tokens: int
    share: float | None
    evicted: int
    states: States | None
    warning: Reason | None


@dataclass(frozen=True, slots=True)
class PrefixesView:
    """`kept` is None where nothing is: `off` then says why, and is None for a model that is not in memory."""

    model: str
    kept: Kept | None = None
    off: Reason | None = None


def prefixes_view(standing: Standing) -> PrefixesView:
    model, report = standing.entry.id, standing.prefixes
    if report is None or report.off is not None:
        return PrefixesView(model, off=None if report is None else report.off)
    return PrefixesView(model, _kept(report, standing.recent))


def _kept(report: PrefixStats, recent: Sequence[RequestStats]) -> Kept:
    prompt, cached = sum(each.prompt_n for each in recent), sum(each.cached_n for each in recent)
    states = States(report.stored.get(STATE, 0), report.states_used)
    return Kept(
        nbytes=report.nbytes,
        max_bytes=report.max_bytes,
        tokens=report.tokens,
        hits=report.hits,
        prompts=report.hits + report.misses,
        hit_tokens=report.hit_tokens,
        share=cached / prompt if prompt else None,
        evicted=sum(report.evicted.values()),
        states=states if states != States(0, 0) else None,
        warning=report.warning,
    )
