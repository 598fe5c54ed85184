"""The card of a model page that tries drafts: the form, the progress, the last result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx.trial.configurations import PLAIN, TrialConfiguration
from omlx.trial.planning import MAX_DRAFTS
from omlx.trial.texts import WRITTEN

from .records import measurement_record, report_record
from .trial_service import Measurement, Report, TrialStatus

_ACTIVE = ("running", "paused")


@dataclass(frozen=True, slots=True)
class Label:
    """A configuration: its name in the API, a key below `ui.try.setup.`, the draft without owner."""

    name: str
    strategy: str
    draft: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One configuration with one kind of text; None where nothing is measured or applies.

    `rate` in tokens per second, `share` of the fastest in percent; `low`, `median`, `high` of the
    speed-up, with `gain` as its class.
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
    """`done` of `total` answers, the current one as a fraction."""

    paused: bool
    done: float
    total: int
    left_s: float | None
    kind: str | None
    label: Label | None
    discarded: int


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The last complete trial. `at` in seconds since the epoch; `recommended` is None for no change."""

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
        """Whether a package can declare the recommended configuration."""
        return self.recommended is not None and self.recommended.strategy != PLAIN.strategy


@dataclass(frozen=True, slots=True)
class OutcomeView:
    """The part of the card that is refreshed. `charts` are of the running trial.

    `ended` is `cancelled` or `failed` if the newest trial ended so, with the `reason` of a failure;
    `applied` can be undone.
    """

    model: str
    progress: Progress | None
    charts: Sequence[Chart]
    ended: str | None
    reason: str | None
    result: TrialResult | None
    applied: Label | None

    @property
    def running(self) -> bool:
        return self.progress is not None


@dataclass(frozen=True, slots=True)
class TrialDraft:
    """A draft that fits the model; `checked` in the form at first."""

    id: str
    name: str
    owner: str
    size_bytes: int
    checked: bool


@dataclass(frozen=True, slots=True)
class TrialCard:
    """`elsewhere` is another model whose trial runs now."""

    model: str
    drafts: Sequence[TrialDraft]
    kinds: Sequence[str]
    conversation: bool
    elsewhere: str | None
    outcome: OutcomeView


def trial_card(status: TrialStatus, drafts: Sequence[TrialDraft], language: str) -> TrialCard:
    """Build the card of `drafts`, those that fit the model, likely ones checked.

    Without a likely one the first is checked; at most `MAX_DRAFTS` are.
    """
    likely = [draft.id for draft in drafts if draft.checked] or [draft.id for draft in drafts[:1]]
    return TrialCard(
        model=status.model,
        drafts=[replace(draft, checked=draft.id in likely[:MAX_DRAFTS]) for draft in drafts],
        kinds=[kind.value for kind in WRITTEN],
        conversation=status.conversation,
        elsewhere=status.running if status.running != status.model else None,
        outcome=outcome_view(status, language),
    )


def outcome_view(status: TrialStatus, language: str) -> OutcomeView:
    progress = ended = reason = None
    charts: Sequence[Chart] = ()
    trial = status.trial
    if trial is not None and trial["state"] in _ACTIVE:
        progress, charts = _progress(trial), _charts(trial)
    elif trial is not None and trial["state"] in ("cancelled", "failed"):
        ended = trial["state"]
        if trial["reason"] is not None:
            reason = report_record(trial, language)["reason"]["message"]
    return OutcomeView(
        model=status.model,
        progress=progress,
        charts=charts,
        ended=ended,
        reason=reason,
        result=None if status.last is None else _result(status.last, language),
        applied=None if status.applied is None else _label_of(status.applied),
    )


def _progress(trial: Report) -> Progress:
    now, done = trial["now"], float(trial["done"])
    kind = label = None
    if now is not None:
        kind, label = now["kind"], _labels(trial)[now["setup"]]
        done += min(1.0, now["tokens"] / trial["tokens"])
    return Progress(
        paused=trial["state"] == "paused",
        done=round(done, 2),
        total=trial["total"],
        left_s=trial["left_s"],
        kind=kind,
        label=label,
        discarded=trial["discarded"],
    )


def _result(last: Measurement, language: str) -> TrialResult:
    shown = measurement_record(last, language)
    record = shown["record"]
    verdict, exact, labels = record["verdict"], record["exact"], _labels(record)
    recommended = None
    if verdict["setup"] is not None:
        recommended = labels[verdict["setup"]["name"]]
    return TrialResult(
        verdict=verdict["message"],
        exact=exact["message"],
        same=exact["same"] == exact["of"],
        at=shown["at"],
        stale=[reason["message"] for reason in shown["stale"]],
        charts=_charts(record),
        labels=list(labels.values()),
        recommended=recommended,
        rounds=record["rounds"],
        discarded=record["discarded"],
    )


def _charts(report: Report) -> list[Chart]:
    """Return a chart per kind of text, with a bar per configuration."""
    labels = _labels(report)
    charts = []
    for kind in report["kinds"]:
        cells = [cell for cell in report["cells"] if cell["kind"] == kind]
        fastest = max((cell["rate"]["median"] for cell in cells if cell["rate"]), default=0.0)
        charts.append(Chart(kind, [_bar(cell, labels[cell["setup"]], fastest) for cell in cells]))
    return charts


def _bar(cell: Report, label: Label, fastest: float) -> Bar:
    rate, speedup = cell["rate"], cell["speedup"]
    if rate is None:
        return Bar(label, None, 0.0)
    share = round(100 * rate["median"] / fastest, 1)
    if speedup is None:
        return Bar(label, rate["median"], share)
    return Bar(
        label,
        rate["median"],
        share,
        low=speedup["low"],
        median=speedup["median"],
        high=speedup["high"],
        gain=speedup["gain"],
        acceptance=cell["acceptance"],
    )


def _labels(report: Report) -> dict[str, Label]:
    """Return the label of each configuration of a trial, by its name."""
    configurations = (
        TrialConfiguration(record["strategy"], record["draft"]) for record in report["setups"]
    )
    return {configuration.name: _label_of(configuration) for configuration in configurations}


def _label_of(configuration: TrialConfiguration) -> Label:
    draft = (configuration.draft or "").rpartition("/")[2]
    return Label(configuration.name, configuration.strategy, draft)
