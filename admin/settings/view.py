"""The settings as a window shows them: plain data, from the table and what is configured. Secrets never leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from omlx.settings.layer import Layer, Source
from omlx.settings.parse import to_json
from omlx.settings.resolve import Resolution
from omlx.settings.schema import AppliesAt, Scope, Setting, Value, table

Json = dict[str, Any]

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
_WINS = (Source.CLI, Source.ENVIRONMENT)


def settings_view(scope: Scope, resolution: Resolution, stored: Layer, revision: str) -> Json:
    """Every setting that may be kept for all models, or for one: `scope`. `stored` is what is kept there."""
    rows = [row for row in table().values() if row.allowed_in(scope)]
    return {
        "revision": revision,
        "settings": {row.name: setting_view(row, resolution, stored) for row in rows},
    }


def setting_view(row: Setting, resolution: Resolution, stored: Layer) -> Json:
    """`value` is in effect and comes from `source`; `stored` is what is kept here, null where the next one decides.

    Of a secret only `set` is told. `locked`: a flag or a variable decides, whatever is kept.
    """
    value, source = resolution[row.name].value, resolution.sources[row.name]
    return {
        "group": row.meta.group.value,
        "type": "list" if row.repeatable else _TYPES.get(row.kind, "path"),
        "choices": list(row.choices) or None,
        "low": row.meta.low if row.meta.low < row.meta.high else None,
        "high": row.meta.high if row.meta.low < row.meta.high else None,
        "bytes": row.meta.is_bytes,
        "secret": row.meta.secret,
        "help": row.help_key,
        "takes": row.meta.applies.value,
        "default": _shown(row, row.default),
        "value": _shown(row, value),
        "source": source.value,
        "locked": source in _WINS,
        "set": row.name in stored.values,
        "stored": _shown(row, stored.values.get(row.name)),
    }


def applied_view(
    names: Iterable[str], resolution: Resolution, own: Source, *, waits: bool
) -> Mapping[str, str]:
    """When each change takes effect: `at_once`, `when_idle`, `restart`, or not while another source wins: `overridden`.

    `waits`: a model that it is about has requests.
    """
    return {name: _applied(table()[name], resolution.sources[name], own, waits) for name in names}


def _applied(row: Setting, source: Source, own: Source, waits: bool) -> str:
    if source.rank < own.rank:
        return "overridden"
    if row.meta.applies is AppliesAt.RELOAD:
        return "when_idle" if waits else "at_once"
    return row.meta.applies.value


def _shown(row: Setting, value: Value) -> object:
    return None if row.meta.secret else to_json(value)
