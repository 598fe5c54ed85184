"""A trial for people: its report with sentences, charts, and the card of a model's page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from omlx.catalog import sentence
from omlx.errors import Reason
from omlx.measure.planning import MAX_DRAFTS, Estimate
from omlx.measure.results import Conditions, StoredResult, stale
from omlx.measure.samples import PLAIN, render_verdict
from omlx.server.http.transport import Json

from .web import formats


@dataclass(frozen=True, slots=True)
class Bar:
    """Records of a configuration and its cell, and the bar's length in percent.

    Length shows the speed-up, or the throughput until a speed-up is known.
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
    """The refreshed part of the card: the API's record, and charts of its reports."""

    status: Json
    running: bool
    trial_charts: Sequence[Chart]
    last_charts: Sequence[Chart]


@dataclass(frozen=True, slots=True)
class TrialCard:
    """`drafts`: sizes in bytes of fitting drafts, by id; `checked` are preselected.

    `sees`: the model reads images. The fit of `unchecked` drafts is not known yet; `unfit` ones
    were listed before; `more`: number of unlisted drafts; `query`: of the refreshed part.
    """

    drafts: Mapping[str, int]
    checked: Collection[str]
    outcome: OutcomeView
    sees: bool = False
    unchecked: Collection[str] = ()
    unfit: Mapping[str, Reason] = field(default_factory=dict)
    more: int = 0
    query: str = ""


def trial_card(
    status: Json, drafts: Mapping[str, int], likely: Sequence[str], *, sees: bool = False
) -> TrialCard:
    """Return the card, with at most `MAX_DRAFTS` `likely` drafts checked, else the first."""
    checked = likely[:MAX_DRAFTS] or list(drafts)[:1]
    return TrialCard(drafts, checked, outcome_view(status), sees)


def outcome_view(status: Json) -> OutcomeView:
    """Return the refreshed part. `status` is the record of `Trials.status`."""
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
        values = _lengths(cells)
        best = max(values, default=0.0) or 1.0
        bars = [
            Bar(setups[cell["setup"]], cell, round(100 * value / best, 1))
            for cell, value in zip(cells, values, strict=True)
        ]
        shown.append(Chart(kind, bars))
    return shown


def _lengths(cells: Sequence[Json]) -> list[float]:
    """Return each cell's median speed-up, 1 for plain decoding; without any, all rates."""
    if not any(cell["speedup"] for cell in cells):
        return [float(cell["rate"]["median"]) if cell["rate"] else 0.0 for cell in cells]
    return [
        float(bool(cell["rate"]))
        if cell["setup"] == PLAIN.name
        else float(cell["speedup"]["median"] if cell["speedup"] else 0)
        for cell in cells
    ]


def report_record(report: Mapping[str, Any], language: str) -> Json:
    """Add the sentences of reason, exactness, a draft's error and verdict to a report."""
    record = dict(report)
    for name in ("reason", "exact", "draft_error"):
        if record.get(name) is not None:  # older results have no draft_error
            message = sentence(record[name]["code"], record[name]["params"], language)
            record[name] = {**record[name], "message": message}
    if record["verdict"] is not None:
        message = render_verdict(record["verdict"], language)
        record["verdict"] = {**record["verdict"], "message": message}
    return record


def stored_record(result: StoredResult, now: Conditions, language: str) -> Json:
    """Return a result's record: `at` in seconds since the epoch; `stale` lists reasons."""
    record = dict(result.record)
    if "verdict" in record:
        record = report_record(record, language)
    reasons = [reason_record(reason, language) for reason in stale(result.conditions, now)]
    return {"record": record, "at": result.at, "stale": reasons}


def estimate_record(estimate: Estimate, language: str = "en") -> Json:
    """Return times in seconds, memory in bytes; `said` holds the sentences."""
    record = asdict(estimate)
    record["least_s"] = round(estimate.least_s, 1)
    record["most_s"] = round(estimate.most_s, 1)
    record["said"] = [reason_record(reason, language) for reason in _sentences(estimate, language)]
    return record


def reason_record(reason: Reason, language: str) -> Json:
    message = sentence(reason.code, reason.params, language)
    return {"code": reason.code, "params": reason.params, "message": message}


def _sentences(estimate: Estimate, language: str) -> list[Reason]:
    least = formats.duration(estimate.least_s, language)
    most = formats.duration(estimate.most_s, language)
    size, limit = formats.memory(estimate.memory_bytes), formats.memory(estimate.limit_bytes)
    time, memory = "trial.estimate.time", "trial.estimate.memory"
    if least == most:
        time = "trial.estimate.about"
    if not estimate.fits:
        memory = "trial.estimate.no_room"
    elif not estimate.memory_bytes:
        memory = "trial.estimate.no_memory"
    sentences = [
        Reason(time, {"least": least, "most": most}),
        Reason(memory, {"size": size, "limit": limit}),
    ]
    if estimate.guessed:
        sentences.append(Reason("trial.estimate.guessed"))
    return sentences
