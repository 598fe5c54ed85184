"""Settings as a form shows them: one field a setting, from what `settings_view` tells."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from omlx.settings.schema import Group

from .view import Json


class Control(StrEnum):
    """What a value is typed or chosen with."""

    TEXT = "text"
    NUMBER = "number"
    SIZE = "size"
    SWITCH = "switch"
    CHOICE = "choice"
    LINES = "lines"
    OBJECT = "object"
    SECRET = "secret"


_CONTROLS: Final = {
    "boolean": Control.SWITCH,
    "integer": Control.NUMBER,
    "number": Control.NUMBER,
    "list": Control.LINES,
    "object": Control.OBJECT,
}
_UNITS: Final = (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


@dataclass(frozen=True, slots=True)
class Field:
    """`text` is what is kept here, as it would be typed; empty where the next source decides. `effect` is the value in
    effect and `source` who set it. `locked`: a flag or a variable wins over whatever is kept."""

    name: str
    control: Control
    text: str
    effect: str
    source: str
    locked: bool
    takes: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    whole: bool = False
    is_set: bool = False
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class FieldGroup:
    name: str
    fields: Sequence[Field]


def form_view(settings: Mapping[str, Json], *, without: Collection[str] = ()) -> list[FieldGroup]:
    """All settings but those named, by group, in the table's order."""
    fields = [
        (told["group"], field_view(name, told))
        for name, told in settings.items()
        if name not in without
    ]
    groups = [
        FieldGroup(group, [field for own, field in fields if own == group]) for group in Group
    ]
    return [group for group in groups if group.fields]


def field_view(name: str, told: Json) -> Field:
    """One setting of `settings_view`."""
    control = _control(told)
    return Field(
        name=name,
        control=control,
        text=_text(told["stored"], control),
        effect=_text(told["value"], control),
        source=told["source"],
        locked=told["locked"],
        takes=told["takes"],
        choices=tuple(told["choices"] or ()),
        low=None if told["bytes"] else told["low"],
        high=None if told["bytes"] else told["high"],
        whole=told["type"] == "integer",
        is_set=told["set"],
        confirm=name == "trust_remote_code",
    )


def _control(told: Json) -> Control:
    if told["secret"]:
        return Control.SECRET
    if told["bytes"]:
        return Control.SIZE
    if told["choices"]:
        return Control.CHOICE
    return _CONTROLS.get(told["type"], Control.TEXT)


def _text(value: object, control: Control) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case list():
            return "\n".join(str(part) for part in value)
        case dict():
            return json.dumps(value, ensure_ascii=False)
        case int() if control is Control.SIZE:
            return _size(value)
        case _:
            return str(value)


def _size(count: int) -> str:
    """The shortest way to type it that means the same."""
    unit, scale = next(
        ((unit, scale) for unit, scale in _UNITS if count >= scale and count % scale == 0), ("", 1)
    )
    return f"{count // scale}{unit}"
