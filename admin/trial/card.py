"""The card of a model page that tries drafts: the form, the progress, the last result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from omlx.trial.configurations import PLAIN
from omlx.trial.planning import MAX_DRAFTS

from ..settings.view import Json


@dataclass(frozen=True, slots=True)
class Bar:
    """Records of a configuration and its cell, and the length of the bar in percent.

    The length is the speed-up, or, while none is known, the throughput.
    """

    setup: Json
    cell: Json
    share: float


@dataclass(frozen=True, slots=True)
class Chart:
    kind: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """The part of the card that is refreshed: the record of the API, and charts of its reports."""

    status: Json
    running: bool
    trial_charts: Sequence[Chart]
    last_charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class TrialCard:
    """`drafts` maps ids of drafts that fit to sizes in bytes; `checked` are chosen first.

    `sees`: the model reads images. Whether the `unchecked` drafts fit is not known yet; `more` are
    not listed.
    """

    drafts: Mapping[str, int]
    checked: Collection[str]
    outcome: OutcomeView
    sees: bool = False
    unchecked: Collection[str] = ()
    more: int = 0


def trial_card(
    status: Json, drafts: Mapping[str, int], likely: Sequence[str], *, sees: bool = False
) -> TrialCard:
    """Check the `likely` drafts, at most `MAX_DRAFTS`, or the first one if there are none."""
    checked = likely[:MAX_DRAFTS] or list(drafts)[:1]
    return TrialCard(drafts, checked, outcome_view(status), sees)


def outcome_view(status: Json) -> OutcomeView:
    """`status` is the record of `TrialService.status`."""
    trial, last = status["trial"], status["last"]
    running = trial is not None and trial["state"] in ("running", "paused")
    return OutcomeView(
        status,
        running,
        trial_charts=charts(trial) if running else (),
        last_charts=charts(last["record"]) if last else (),
    )


def charts(report: Json) -> list[Chart]:
    """Return a chart per kind of text, with a bar per configuration; the best has 100 %."""
    setups = {setup["name"]: setup for setup in report["setups"]}
    shown = []
    for kind in report["kinds"]:
        cells = [cell for cell in report["cells"] if cell["kind"] == kind]
        values = _speedups(cells) or [_rate(cell) for cell in cells]
        best = max(values, default=0.0) or 1.0
        bars = [
            Bar(setups[cell["setup"]], cell, round(100 * value / best, 1))
            for cell, value in zip(cells, values, strict=True)
        ]
        shown.append(Chart(kind, bars))
    return shown


def _speedups(cells: Sequence[Json]) -> list[float]:
    """Return the median speed-up of each cell, 1 for plain decoding; empty if none is known."""
    if not any(cell["speedup"] for cell in cells):
        return []
    return [_speedup(cell) for cell in cells]


def _speedup(cell: Json) -> float:
    if cell["setup"] == PLAIN.name:
        return float(bool(cell["rate"]))
    return float(cell["speedup"]["median"]) if cell["speedup"] else 0.0


def _rate(cell: Json) -> float:
    return float(cell["rate"]["median"]) if cell["rate"] else 0.0
