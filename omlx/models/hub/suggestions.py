"""Models to begin with, and drafts known to fit a family: data in suggestions.json.

The hub is not asked: sizes are those at the time of writing. The first one comes from a package.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Final

from omlx.models.catalog.context import declared_context
from omlx.models.hub.fit import layout_of_config
from omlx.models.hub.offer import Companion, Offer

COUNT: Final = 3
"""Models of the hub that are offered on an empty machine."""


def starters(limit_bytes: int, count: int = COUNT) -> list[Offer]:
    """Return the model of the package and the `count` largest models of the hub that fit.

    The smallest is first.
    """
    first, *offers = (_offer(record) for record in (_data()["first"], *_data()["starters"]))
    fitting = [offer for offer in offers if offer.fit(limit_bytes).comfortable][-count:]
    return [first, *fitting] if first.fit(limit_bytes).comfortable else fitting


def known_draft(model: str) -> Companion | None:
    """Return a draft model that fits by its family, if one is known."""
    for pair in _data()["drafts"]:
        if any(fnmatch(model, target) for target in pair["targets"]):
            return Companion(pair["draft"], pair["bytes"], pair["bytes"])
    return None


def _offer(record: dict[str, Any]) -> Offer:
    config, size = record["config"], record["download_bytes"]
    return Offer(
        record["model"],
        download_bytes=size,
        weight_bytes=record.get("weight_bytes", size),
        quantization=record["quantization"],
        parameters=record.get("parameters"),
        model_type=config["model_type"],
        context_length=declared_context(config),
        layout=layout_of_config(config),
        companion=known_draft(record["model"]),
    )


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    )
    return data
