"""The speculation record of a model: one JSON object for API, command line and dashboard."""

from __future__ import annotations

from omlx.errors import Reason
from omlx.models.catalog.reference import MissingDraft
from omlx.models.pool.resident import ServedModel
from omlx.models.pool.speculation_config import SpeculationConfig
from omlx.settings.layer import Source
from omlx.settings.schema import Group, table


def speculation_to_json(
    speculation: SpeculationConfig, served: ServedModel | None = None
) -> dict[str, object]:
    """Return what is configured and its effect on `served`, the model if it is loaded.

    `source` says who set the strategy, `sources` who set each setting; `draft` is the draft in use
    or, while the model is not loaded, the draft to load; `reason` says why there is none. `head` is
    the draft head of the loaded model.
    """
    draft = speculation.active_draft.id if speculation.active_draft is not None else None
    reason = speculation.no_draft_reason
    head = None
    if served is not None:
        draft, reason, head = served.draft, served.no_draft_reason, served.no_head_reason
    draft_length, missing = speculation.draft_length, speculation.missing_draft
    return {
        "configured": str(speculation.strategy),
        "source": speculation.sources["speculation"].value,
        "sources": _sources_to_json(speculation),
        "draft": draft,
        "draft_configured": speculation.settings.draft_model,
        "draft_source": speculation.sources["draft_model"].value,
        "window": {
            "initial": draft_length.initial,
            "min": draft_length.min,
            "max": draft_length.max,
            "adaptive": draft_length.fixed is None,
        },
        "reason": None if reason is None else reason_to_json(reason),
        "head": None if served is None else _head_to_json(head),
        "wanted": None if missing is None else _missing_to_json(missing),
        "draft_download": speculation.settings.draft_download,
        "warnings": [reason_to_json(warning) for warning in speculation.warnings],
    }


def reason_to_json(reason: Reason) -> dict[str, object]:
    return {"code": reason.code, "params": reason.params, "message": reason.message}


def _head_to_json(missing: Reason | None) -> dict[str, object]:
    """Whether a head is loaded, else why not."""
    return {
        "loaded": missing is None,
        "reason": None if missing is None else reason_to_json(missing),
    }


def _sources_to_json(speculation: SpeculationConfig) -> dict[str, str]:
    """Return who set each speculation setting that is not at its default."""
    sources = speculation.sources
    return {
        name: sources[name].value
        for name, row in table().items()
        if row.meta.group is Group.SPECULATION and sources[name] is not Source.BUILT_IN
    }


def _missing_to_json(draft: MissingDraft) -> dict[str, object]:
    return {
        "repository": draft.reference.repository,
        "revision": draft.reference.revision,
        "size_bytes": draft.size_bytes,
        "fetching": draft.fetching,
        "failed": None if draft.failed is None else reason_to_json(draft.failed),
    }
