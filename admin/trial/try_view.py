"""The card that tries drafts: what can be chosen, how far a trial is, what the last one found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models.drafts_view import Candidate, Tried

PLAIN = "off"
_MOVING = ("running", "paused")


@dataclass(frozen=True, slots=True)
class Label:
    """A way to run the model, as the API names it: a key below `ui.try.setup.`, and the draft without its owner."""

    name: str
    strategy: str
    draft: str


@dataclass(frozen=True, slots=True)
class Bar:
    """`rate` in tokens per second, `share` of the fastest in percent; the rest against plain decoding.

    None is not known, or does not apply.
    """

    label: Label
    rate: float | None
    share: float
    low: float | None = None
    median: float | None = None
    high: float | None = None
    gain: str = ""
    acceptance: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    kind: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Progress:
    """Answers that are `done` of `total`, counting in parts the one that is being given."""

    paused: bool
    done: float
    total: int
    left_s: float | None
    kind: str | None
    label: Label | None
    discarded: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the last trial found, `at` so many seconds since 1970. `recommended` is None where nothing is to change."""

    verdict: str
    exact: str
    same: bool
    at: float
    stale: Sequence[str]
    charts: Sequence[Chart]
    labels: Sequence[Label]
    recommended: Label | None
    rounds: int
    discarded: int

    @property
    def writable(self) -> bool:
        return self.recommended is not None and self.recommended.strategy != PLAIN


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """`ended` is `cancelled` or `failed` if that is how the newest trial ended, `reason` why it failed. `charts` are of
    the trial that runs. `applied` can be undone."""

    model: str
    progress: Progress | None
    charts: Sequence[Chart]
    ended: str | None
    reason: str | None
    found: Found | None
    applied: Label | None

    @property
    def running(self) -> bool:
        return self.progress is not None


@dataclass(frozen=True, slots=True)
class TryView:
    """`elsewhere` is another model that is being tried. `chosen` are the drafts that are ticked at first."""

    model: str
    drafts: Sequence[Candidate]
    chosen: Sequence[str]
    most_drafts: int
    kinds: Sequence[str]
    conversation: bool
    elsewhere: str | None
    outcome: OutcomeView


def try_view(told: Mapping[str, Any], drafts: Sequence[Candidate]) -> TryView:
    """`told` is what the API tells of a model's trials, `drafts` are those that fit."""
    most = told["most_drafts"]
    ticked = [draft.id for draft in drafts if draft.chosen or draft.declared] or [
        draft.id for draft in drafts[:1]
    ]
    running = told["running"]
    return TryView(
        model=told["model"],
        drafts=drafts,
        chosen=ticked[:most],
        most_drafts=most,
        kinds=told["kinds"],
        conversation=told["conversation"],
        elsewhere=running if running != told["model"] else None,
        outcome=outcome_view(told),
    )


def tried_view(told: Mapping[str, Any]) -> dict[str, Tried]:
    """By draft, what the last trial that it was part of found."""
    return {
        draft: Tried(result["record"]["overall"]["median"], stale=bool(result["stale"]))
        for draft, result in told["results"].items()
        if result["record"]["overall"] is not None
    }


def outcome_view(told: Mapping[str, Any]) -> OutcomeView:
    """How far the newest trial is, and what the last one found."""
    trial, last, applied = told["trial"], told["last"], told["applied"]
    moving = trial is not None and trial["state"] in _MOVING
    ended = (
        trial["state"] if trial is not None and trial["state"] in ("cancelled", "failed") else None
    )
    return OutcomeView(
        model=told["model"],
        progress=progress(trial) if moving else None,
        charts=charts(trial) if moving else (),
        ended=ended,
        reason=trial["reason"]["message"] if ended and trial["reason"] is not None else None,
        found=None if last is None else found(last),
        applied=None if applied is None else label(applied),
    )


def progress(trial: Mapping[str, Any]) -> Progress:
    now = trial["now"]
    begun = 0.0 if now is None else min(1.0, now["tokens"] / trial["tokens"])
    setup = (
        None
        if now is None
        else next(each for each in trial["setups"] if each["name"] == now["setup"])
    )
    return Progress(
        paused=trial["state"] == "paused",
        done=round(trial["done"] + begun, 2),
        total=trial["total"],
        left_s=trial["left_s"],
        kind=None if now is None else now["kind"],
        label=None if setup is None else label(setup),
        discarded=trial["discarded"],
    )


def found(last: Mapping[str, Any]) -> Found:
    record = last["record"]
    recommended = record["verdict"]["setup"]
    return Found(
        verdict=record["verdict"]["message"],
        exact=record["exact"]["message"],
        same=record["exact"]["same"] == record["exact"]["of"],
        at=last["at"],
        stale=[reason["message"] for reason in last["stale"]],
        charts=charts(record),
        labels=[label(setup) for setup in record["setups"]],
        recommended=None if recommended is None else label(recommended),
        rounds=record["rounds"],
        discarded=record["discarded"],
    )


def charts(report: Mapping[str, Any]) -> list[Chart]:
    """By kind of text a bar for each setup, as long as it is fast."""
    labels = {setup["name"]: label(setup) for setup in report["setups"]}
    found = []
    for kind in report["kinds"]:
        cells = [cell for cell in report["cells"] if cell["kind"] == kind]
        fastest = max((cell["rate"]["median"] for cell in cells if cell["rate"]), default=0.0)
        found.append(Chart(kind, [_bar(cell, labels[cell["setup"]], fastest) for cell in cells]))
    return found


def label(setup: Mapping[str, Any]) -> Label:
    return Label(setup["name"], setup["strategy"], (setup["draft"] or "").rpartition("/")[2])


def _bar(cell: Mapping[str, Any], label: Label, fastest: float) -> Bar:
    rate, speedup = cell["rate"], cell["speedup"]
    if rate is None:
        return Bar(label, None, 0.0)
    share = round(100 * rate["median"] / fastest, 1)
    if speedup is None:
        return Bar(label, rate["median"], share)
    low, median, high = (speedup[name] for name in ("low", "median", "high"))
    return Bar(label, rate["median"], share, low, median, high, speedup["gain"], cell["acceptance"])
