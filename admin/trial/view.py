"""What a page is told of trials: plain data, sentences in the page's language."""

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


def report_view(report: Mapping[str, Any], language: str) -> Json:
    """A report with its sentences."""
    told = dict(report)
    for name in ("reason", "exact"):
        if told[name] is not None:
            told[name] = {
                **told[name],
                "message": sentence(told[name]["code"], told[name]["params"], language),
            }
    if told["verdict"] is not None:
        told["verdict"] = {**told["verdict"], "message": render_verdict(told["verdict"], language)}
    return told


def kept_view(kept: StoredResult, now: Conditions, language: str) -> Json:
    """Something that was measured earlier: `at` in seconds since 1970; `stale` says why it no longer counts."""
    reasons = [_said(reason, language) for reason in kept.stale(now)]
    record = report_view(kept.record, language) if "verdict" in kept.record else dict(kept.record)
    return {"record": record, "at": kept.at, "stale": reasons}


def estimate_view(estimate: Estimate, language: str = "en") -> Json:
    """Times in seconds, memory in bytes; `said` are the sentences that say it."""
    time = {"least": formats.duration(estimate.least_s), "most": formats.duration(estimate.most_s)}
    size = {
        "size": formats.size(estimate.memory_bytes),
        "limit": formats.size(estimate.limit_bytes),
    }
    said = [
        Reason(
            "trial.estimate.time" if time["least"] != time["most"] else "trial.estimate.about",
            {**time},
        )
    ]
    if not estimate.fits:
        said.append(Reason("trial.estimate.no_room", {**size}))
    else:
        said.append(
            Reason(
                "trial.estimate.memory" if estimate.memory_bytes else "trial.estimate.no_memory",
                {**size},
            )
        )
    if estimate.guessed:
        said.append(Reason("trial.estimate.guessed"))
    whole = {
        **asdict(estimate),
        "least_s": round(estimate.least_s, 1),
        "most_s": round(estimate.most_s, 1),
    }
    return whole | {"said": [_said(reason, language) for reason in said]}


def _said(reason: Reason, language: str) -> Json:
    return {
        "code": reason.code,
        "params": reason.params,
        "message": sentence(reason.code, reason.params, language),
    }
