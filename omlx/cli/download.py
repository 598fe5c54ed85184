"""The command that downloads a draft model, for a person."""

from __future__ import annotations

from omlx.catalog import sentence
from omlx.cli.output import size
from omlx.models.catalog.reference import MissingDraft


def download_hint(missing: MissingDraft) -> str:
    """Return a sentence with the command that downloads a draft, and its size."""
    known = "?"
    if missing.size_bytes is not None:
        known = size(missing.size_bytes)
    return sentence("cli.package.wanted", {"draft": str(missing.reference), "size": known})
