"""What the first page shows: how things go, what came of the latest requests, and how to connect. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.resident import State

from ..models.model_snapshot import Standing
from ..models.view import ModelRow, model_row
from ..snippets import Snippet, snippets
from .live_view import AnswerView, Live, StepView, minutes

LISTED: Final = 8
"""How many of the latest answers are listed."""
_SOME: Final = "org/model"


@dataclass(frozen=True, slots=True)
class Welcome:
    """What to do first. `model` is the one to begin with, None where there is none."""

    model: str | None
    loading: bool = False


@dataclass(frozen=True, slots=True)
class OverviewView:
    """`address` is where the browser found the server. `has_charts`: what draws them is here."""

    live: Live
    welcome: Welcome | None
    here: Sequence[ModelRow]
    minutes: Sequence[StepView]
    answers: Sequence[AnswerView]
    address: str
    snippets: Sequence[Snippet]
    with_key: bool
    has_charts: bool


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server beside its models. `prompt` is what the examples ask, in the page's language."""

    address: str
    prompt: str
    with_key: bool
    has_charts: bool


def overview_view(
    live: Live,
    here: Sequence[Standing],
    models: Sequence[ModelEntry],
    default: str | None,
    server: Server,
) -> OverviewView:
    """`models` can be asked for, `here` are those in memory or on their way, `default` serves who names none."""
    model = (
        default
        or next((each.entry.id for each in here), None)
        or suggested(models, live.limit_bytes)
    )
    return OverviewView(
        live=live,
        welcome=welcome(live, here, model),
        here=[model_row(each, default) for each in here],
        minutes=minutes(live.steps),
        answers=list(reversed(live.answers))[:LISTED],
        address=server.address,
        snippets=snippets(server.address, model or _SOME, server.prompt, with_key=server.with_key),
        with_key=server.with_key,
        has_charts=server.has_charts,
    )


def suggested(models: Sequence[ModelEntry], limit_bytes: int) -> str | None:
    """The model to begin with: the largest for which there is room. None where there is none at all."""
    able = [each for each in models if each.size_bytes <= limit_bytes]
    return max(able or models, key=lambda each: each.size_bytes).id if models else None


def welcome(live: Live, here: Sequence[Standing], model: str | None) -> Welcome | None:
    """None once a model is in memory, or has been: then it is known how."""
    if live.prompt or any(each.told.state is not State.LOADING for each in here):
        return None
    return Welcome(model, loading=bool(here))
