"""Times as Ollama's API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """Return a time in seconds since 1970 in ISO's form."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
