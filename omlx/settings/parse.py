"""From what a person typed to the value of a setting. Everything wrong is a ConfigError that names
where it stands.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omlx.errors import ConfigError
from omlx.settings.schema import Setting, Value

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse(setting: Setting, raw: str | Sequence[str], where: str) -> Value:
    """The value that `raw` stands for; `where` is the flag or variable it came from.

    A setting with many values takes a list, or one string split at the path separator (files) or
    commas. Raises ConfigError.
    """
    if not setting.repeatable:
        if not isinstance(raw, str):
            raw = raw[-1]
        return _one(setting, raw, where)
    if isinstance(raw, str):
        raw = [
            part for part in raw.split(os.pathsep if setting.kind is Path else ",") if part.strip()
        ]
    if setting.kind is Path:
        return tuple(_path(part, where) for part in raw)
    parts = tuple(part.strip() for part in raw)
    if (
        setting.is_mapping
        and (wrong := next((part for part in parts if not all(part.partition("="))), None))
        is not None
    ):
        raise ConfigError("config.map", where=where, value=wrong, form=setting.meta.metavar)
    return parts


def from_json(setting: Setting, raw: object, where: str) -> Value:
    """The value that JSON stands for. Types are strict: a number is not a string, 1 is not true.
    Raises ConfigError.

    A size may also be written as a string (`512MB`).
    """
    if setting.repeatable:
        if not isinstance(raw, list) or not all(isinstance(part, str) for part in raw):
            raise ConfigError("config.list", where=where, value=_shown(raw))
        return parse(setting, [str(part) for part in raw], where)
    if setting.kind is dict:
        return _object(raw, where)
    if setting.kind is bool:
        if not isinstance(raw, bool):
            raise ConfigError("config.boolean", where=where, value=_shown(raw))
        return raw
    if setting.kind in (int, float) and not (setting.meta.is_bytes and isinstance(raw, str)):
        if isinstance(raw, bool) or not isinstance(
            raw, int if setting.kind is int else int | float
        ):
            raise _out_of_range(setting, _shown(raw), where)
        number: int | float = setting.kind(_bounded(setting, raw, str(raw), where))
        return number
    if not isinstance(raw, str):
        raise ConfigError("config.string", where=where, value=_shown(raw))
    return _one(setting, raw, where)


def to_json(value: Value) -> object:
    """What the files hold for a value; `from_json` reads it back."""
    if isinstance(value, tuple):
        return [str(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _shown(raw: object) -> str:
    return json.dumps(raw, default=str, ensure_ascii=False)[:80]


def _one(setting: Setting, raw: str, where: str) -> Value:
    if setting.choices:
        if raw not in setting.choices:
            raise ConfigError(
                "config.choice", where=where, value=raw, choices=", ".join(setting.choices)
            )
        return raw
    if setting.meta.is_bytes:
        return int(_bounded(setting, _size(raw, where), raw, where))
    if setting.kind is bool:
        return _switch(raw, where)
    if setting.kind is Path:
        return _path(raw, where)
    if setting.kind is dict:
        try:
            return _object(json.loads(raw), where)
        except ValueError:
            raise ConfigError("config.object_text", where=where, value=_shown(raw)) from None
    if setting.kind is str:
        if not raw.strip():
            raise ConfigError("config.empty", where=where)
        return raw
    return _number(setting, raw, where)


def _object(raw: object, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict) or not _is_json(raw):
        raise ConfigError("config.object_text", where=where, value=_shown(raw))
    return raw


def _is_json(raw: object) -> bool:
    """Not with NaN or Infinity in it, which Python reads and writes: no answer can tell of them."""
    try:
        json.dumps(raw, allow_nan=False)
    except ValueError:
        return False
    return True


def _number(setting: Setting, raw: str, where: str) -> int | float:
    try:
        value = int(raw) if setting.kind is int else float(raw)
    except ValueError:
        raise _out_of_range(setting, raw, where) from None
    return _bounded(setting, value, raw, where)


def _bounded(setting: Setting, value: int | float, raw: str, where: str) -> int | float:
    if not setting.meta.low <= value <= setting.meta.high:
        raise _out_of_range(setting, raw, where)
    return value


def _out_of_range(setting: Setting, raw: str, where: str) -> ConfigError:
    code = "config.int" if setting.kind is int else "config.float"
    return ConfigError(code, where=where, value=raw, low=setting.meta.low, high=setting.meta.high)


def _size(raw: str, where: str) -> float:
    match = _SIZE.fullmatch(raw)
    if match is None:
        raise ConfigError("config.size", where=where, value=raw)
    return float(match[1]) * _UNITS[match[2].lower()]


def _switch(raw: str, where: str) -> bool:
    word = raw.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ConfigError("config.switch", where=where, value=raw)
    return word in _TRUE


def _path(raw: str, where: str) -> Path:
    if not raw.strip():
        raise ConfigError("config.empty", where=where)
    path = os.path.expanduser(raw)
    if path.startswith("~"):
        raise ConfigError("config.home_unknown", where=where, value=raw)
    return Path(path).absolute()
