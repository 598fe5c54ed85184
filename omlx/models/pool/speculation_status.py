"""What is said of a model's speculation: one JSON record for the API, the command line and the dashboard."""

from __future__ import annotations

from omlx.engine.types import Reason
from omlx.models.catalog.reference import Wanted
from omlx.models.pool.lease import Served
from omlx.models.pool.speculative import Speculative
from omlx.settings.layer import Source
from omlx.settings.schema import Group, table


def speculation_record(speculative: Speculative, served: Served | None = None) -> dict[str, object]:
    """What is configured, by whom, and what comes of it. `served` is the model as it is loaded, if it is.

    `source` says who chose the strategy, `sources` who set each setting; `draft` is the draft in use (or, while the
    model is not loaded, the one that would be); `reason` says why there is none.
    """
    draft = speculative.drafting.id if speculative.drafting is not None else None
    reason = speculative.undrafted
    if served is not None:
        draft, reason = served.draft, served.no_draft
    window = speculative.window
    return {
        "configured": str(speculative.strategy),
        "source": speculative.sources["speculation"].value,
        "sources": sources_record(speculative),
        "draft": draft,
        "draft_configured": speculative.settings.draft_model,
        "draft_source": speculative.sources["draft_model"].value,
        "window": {
            "initial": window.initial,
            "min": window.shortest,
            "max": window.longest,
            "adaptive": not window.fixed,
        },
        "reason": None if reason is None else reason_record(reason),
        "wanted": None if speculative.wanted is None else wanted_record(speculative.wanted),
        "draft_download": speculative.settings.draft_download,
        "warnings": [reason_record(warning) for warning in speculative.warnings],
    }


def sources_record(speculative: Speculative) -> dict[str, str]:
    """Who set each setting of speculation that anybody set."""
    names = [name for name, row in table().items() if row.meta.group is Group.SPECULATION]
    found = {name: speculative.sources[name] for name in names}
    return {name: source.value for name, source in found.items() if source is not Source.BUILT_IN}


def reason_record(reason: Reason) -> dict[str, object]:
    return {"code": reason.code, "params": reason.params, "message": reason.message}


def wanted_record(wanted: Wanted) -> dict[str, object]:
    reference = wanted.reference
    return {
        "repository": reference.repository,
        "revision": reference.revision,
        "size_bytes": wanted.size_bytes,
        "fetching": wanted.fetching,
        "failed": None if wanted.failed is None else reason_record(wanted.failed),
    }
