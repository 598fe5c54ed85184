"""What is said of a model's speculation: one JSON record for the API, the command line and the dashboard."""

from __future__ import annotations

from omlx.engine.types import Reason
from omlx.models.catalog.reference import MissingDraft
from omlx.models.pool.resident import ServedModel
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.layer import Source
from omlx.settings.schema import Group, table


def speculation_record(
    speculation: SpeculationConfig, served: ServedModel | None = None
) -> dict[str, object]:
    """What is configured, by whom, and what comes of it. `served` is the model as it is loaded, if it is.

    `source` says who chose the strategy, `sources` who set each setting; `draft` is the draft in use (or, while the
    model is not loaded, the one that would be); `reason` says why there is none.
    """
    draft = speculation.active_draft.id if speculation.active_draft is not None else None
    reason = speculation.no_draft_reason
    if served is not None:
        draft, reason = served.draft, served.no_draft
    draft_length = speculation.draft_length
    return {
        "configured": str(speculation.strategy),
        "source": speculation.sources["speculation"].value,
        "sources": sources_record(speculation),
        "draft": draft,
        "draft_configured": speculation.settings.draft_model,
        "draft_source": speculation.sources["draft_model"].value,
        "window": {
            "initial": draft_length.initial,
            "min": draft_length.min,
            "max": draft_length.max,
            "adaptive": draft_length.fixed is None,
        },
        "reason": None if reason is None else reason_record(reason),
        "wanted": None
        if speculation.missing_draft is None
        else wanted_record(speculation.missing_draft),
        "draft_download": speculation.settings.draft_download,
        "warnings": [reason_record(warning) for warning in speculation.warnings],
    }


def sources_record(speculation: SpeculationConfig) -> dict[str, str]:
    """Who set each setting of speculation that anybody set."""
    names = [name for name, row in table().items() if row.meta.group is Group.SPECULATION]
    found = {name: speculation.sources[name] for name in names}
    return {name: source.value for name, source in found.items() if source is not Source.BUILT_IN}


def reason_record(reason: Reason) -> dict[str, object]:
    return {"code": reason.code, "params": reason.params, "message": reason.message}


def wanted_record(wanted: MissingDraft) -> dict[str, object]:
    reference = wanted.reference
    return {
        "repository": reference.repository,
        "revision": reference.revision,
        "size_bytes": wanted.size_bytes,
        "fetching": wanted.fetching,
        "failed": None if wanted.failed is None else reason_record(wanted.failed),
    }
