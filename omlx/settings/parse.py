"""Parser of settings from text or JSON. Every ConfigError names where the value was set."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from omlx.errors import ConfigError
from omlx.settings.schema import Setting, Settings, Value
from omlx.settings.types import SHOWN, Form, shown, size_text

_SWITCH: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}

_NO_TEXT: Final = (Form.NUMBER, Form.SWITCH, Form.OBJECT)


def parse(setting: Setting, raw: str | Sequence[str], where: str) -> Value:
    """Parse the text of a flag or variable; `where` is its name.

    A repeatable setting takes a list, or one string split at the path separator (files) or at
    commas. Raises ConfigError.
    """
    if "\0" in "".join(raw):
        raise ConfigError("config.nul", where=where)
    if setting.repeatable:
        if isinstance(raw, str):
            separator = os.pathsep if setting.kind is Path else ","
            raw = [part for part in raw.split(separator) if part.strip()]
        return from_json(setting, list(raw), where)
    text = raw if isinstance(raw, str) else raw[-1]
    try:
        value = _json_value(setting, text, where)
    except ValueError:
        raise _mismatch(setting, text, where, text) from None
    return from_json(setting, value, where, text)


def from_json(setting: Setting, raw: object, where: str, text: str | None = None) -> Value:
    """Validate a JSON value. Types are strict: a number is no string, 1 is not true.

    A size may also be a string (`512MB`). `text` is the value as written, for the error. Raises
    ConfigError.
    """
    texts = [raw]
    if setting.repeatable:
        texts = raw if isinstance(raw, list) else []
    if setting.form not in _NO_TEXT and any("\0" in part for part in texts if type(part) is str):
        raise ConfigError("config.nul", where=where)
    if raw is None:  # valid for pydantic: the default of many settings
        raise _mismatch(setting, raw, where, text)
    try:
        value: Value = getattr(Settings.model_validate({setting.name: raw}), setting.name)
        return value
    except ConfigError as error:
        error.params["where"] = where
        raise
    except ValidationError:
        raise _mismatch(setting, raw, where, text) from None


def to_json(value: Value) -> object:
    """Return the JSON form of a value, as stored in files; `from_json` is the inverse."""
    if isinstance(value, tuple):
        return [str(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _json_value(setting: Setting, text: str, where: str) -> object:
    """Convert text to a JSON value by the setting's form. Raises ConfigError, ValueError."""
    match setting.form:
        case Form.SWITCH:
            if (word := text.strip().lower()) not in _SWITCH:
                raise ConfigError("config.switch", where=where, value=text)
            return _SWITCH[word]
        case Form.OBJECT:
            return json.loads(text)
        case Form.NUMBER:
            return int(text) if setting.kind is int else float(text)
        case _:
            return text


def _mismatch(setting: Setting, raw: object, where: str, text: str | None) -> ConfigError:
    """Return the error for a value of another type, or out of range."""
    value, low, high = shown(raw), setting.meta.low, setting.meta.high
    match setting.form:
        case Form.LINES | Form.MAP:
            return ConfigError("config.list", where=where, value=value)
        case Form.OBJECT:
            return ConfigError("config.object_text", where=where, value=value)
        case Form.SWITCH:
            return ConfigError("config.boolean", where=where, value=value)
        case Form.CHOICE if isinstance(raw, str):
            choices = ", ".join(setting.choices)
            return ConfigError("config.choice", where=where, value=raw, choices=choices)
        case Form.NUMBER | Form.SIZE:
            if isinstance(raw, str) or type(raw) in (int, setting.kind):
                value = text or str(raw)[:SHOWN]
            if setting.form is Form.SIZE:
                bounds = {"low": size_text(int(low)), "high": size_text(int(high))}
                return ConfigError("config.size_range", where=where, value=value, **bounds)
            code = "config.int" if setting.kind is int else "config.float"
            return ConfigError(code, where=where, value=value, low=low, high=high)
        case _:
            return ConfigError("config.string", where=where, value=value)
