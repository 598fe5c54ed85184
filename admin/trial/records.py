"""Trials as JSON, with sentences in the language of the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from omlx.catalog import sentence
from omlx.errors import Reason
from omlx.trial.conditions import Conditions
from omlx.trial.estimate import Estimate
from omlx.trial.render_verdict import render_verdict
from omlx.trial.result_store import StoredResult

from .. import formats
from ..settings.view import Json


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
    """A stored result: `at` in seconds since the epoch; `stale` says why it no longer holds."""
    record = dict(result.record)
    if "verdict" in record:
        record = report_record(record, language)
    stale = [reason_record(reason, language) for reason in result.stale(now)]
    return {"record": record, "at": result.at, "stale": stale}


def estimate_record(estimate: Estimate, language: str = "en") -> Json:
    """Times in seconds, memory in bytes; `said` holds the sentences."""
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
