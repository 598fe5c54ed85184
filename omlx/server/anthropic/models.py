"""The list of models in this dialect. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from omlx.server.dialect import Json


def listed(models: Sequence[Json]) -> Json:
    """From the records of the other dialect, with `id` and `created` (seconds)."""
    data = [model(each) for each in models]
    ends = {
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return {"data": data, "has_more": False, **ends}


def model(record: Json) -> Json:
    created = datetime.fromtimestamp(record["created"], UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": record["id"],
        "display_name": record["id"],
        "created_at": created,
    }
