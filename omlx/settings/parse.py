"""From text or JSON to the value of a setting. Every ConfigError names where the value was set."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from omlx.errors import ConfigError
from omlx.settings.origins import is_pattern
from omlx.settings.schema import Setting, Value

_SHOWN: Final = 80
"""Characters of a rejected value that an error repeats."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE_SCALES = (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))
_MAX_SECRET: Final = 4096
"""Characters of a secret: a server reads a head of at most 64 KB, many proxies one of 8 KB."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse(setting: Setting, raw: str | Sequence[str], where: str) -> Value:
    """Parse the text of a flag or variable; `where` is its name.

    A repeatable setting takes a list, or one string split at the path separator (files) or at
    commas. Raises ConfigError.
    """
    if any("\0" in part for part in ([raw] if isinstance(raw, str) else raw)):
        raise ConfigError("config.nul", where=where)
    if not setting.repeatable:
        return _parse_one(setting, raw if isinstance(raw, str) else raw[-1], where)
    if isinstance(raw, str):
        separator = os.pathsep if setting.kind is Path else ","
        raw = [part for part in raw.split(separator) if part.strip()]
    if setting.kind is Path:
        return tuple(_path(part, where) for part in raw)
    parts = tuple(part.strip() for part in raw)
    if setting.is_mapping:
        for part in parts:
            if not all(part.partition("=")):
                raise ConfigError("config.map", where=where, value=part, form=setting.meta.metavar)
    if setting.is_origin:
        for part in parts:
            if not is_pattern(part):
                raise ConfigError("config.origin", where=where, value=part)
    return parts


def from_json(setting: Setting, raw: object, where: str) -> Value:
    """Return the value of a JSON value. Types are strict: a number is no string, 1 is not true.

    A size may also be a string (`512MB`). Raises ConfigError.
    """
    if setting.repeatable:
        if not isinstance(raw, list) or not all(isinstance(part, str) for part in raw):
            raise ConfigError("config.list", where=where, value=_shown(raw))
        return parse(setting, [str(part) for part in raw], where)
    if setting.kind is dict:
        return _object(setting, raw, where)
    if setting.kind is bool:
        if not isinstance(raw, bool):
            raise ConfigError("config.boolean", where=where, value=_shown(raw))
        return raw
    if setting.kind in (int, float) and not (setting.meta.is_bytes and isinstance(raw, str)):
        numbers = (int,) if setting.kind is int else (int, float)
        if isinstance(raw, bool) or not isinstance(raw, numbers):
            shown = raw if isinstance(raw, str) else _shown(raw)
            raise _out_of_range(setting, shown[:_SHOWN], where)
        number: int | float = setting.kind(_bounded(setting, raw, str(raw), where))
        return number
    if not isinstance(raw, str):
        raise ConfigError("config.string", where=where, value=_shown(raw))
    return parse(setting, raw, where)


def to_json(value: Value) -> object:
    """Return a value as the files hold it; `from_json` is the inverse."""
    if isinstance(value, tuple):
        return [str(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return value


def size_text(nbytes: int) -> str:
    """Return the shortest exact way to write a size: `2GB`. Units are powers of 1024."""
    for unit, scale in _SIZE_SCALES:
        if nbytes >= scale and nbytes % scale == 0:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)


def _parse_one(setting: Setting, raw: str, where: str) -> Value:
    if setting.choices:
        if raw not in setting.choices:
            choices = ", ".join(setting.choices)
            raise ConfigError("config.choice", where=where, value=raw, choices=choices)
        return raw
    if setting.may_be_off and raw.strip().lower() == "off":
        return 0
    if setting.meta.is_bytes:
        return int(_bounded(setting, _size(raw, where), raw, where))
    if setting.kind is bool:
        return _switch(raw, where)
    if setting.kind is Path:
        return _path(raw, where)
    if setting.kind is dict:
        try:
            return _object(setting, json.loads(raw), where)
        except ValueError:
            raise ConfigError("config.object_text", where=where, value=_shown(raw)) from None
    if setting.kind is str:
        if not raw.strip():
            raise ConfigError("config.empty", where=where)
        if setting.meta.secret:
            _check_secret(raw, where)
        return raw
    return _number(setting, raw, where)


def _check_secret(raw: str, where: str) -> None:
    """Raise ConfigError for text that no HTTP header can carry. The error does not repeat it."""
    fits = raw.isascii() and raw.isprintable() and raw == raw.strip()
    if not fits or len(raw) > _MAX_SECRET:
        raise ConfigError("config.secret", where=where, limit=_MAX_SECRET)


def _object(setting: Setting, raw: object, where: str) -> dict[str, Any]:
    """Check a JSON object; NaN and Infinity, which Python's parser accepts, are no JSON."""
    try:
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        json.dumps(raw, allow_nan=False)
    except ValueError:
        raise ConfigError("config.object_text", where=where, value=_shown(raw)) from None
    for name in raw:
        if name in setting.meta.reserved:
            raise ConfigError("config.reserved", where=where, name=name)
    return raw


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
    low, high = setting.meta.low, setting.meta.high
    if setting.meta.is_bytes:
        bounds = {"low": size_text(int(low)), "high": size_text(int(high))}
        return ConfigError("config.size_range", where=where, value=raw, **bounds)
    code = "config.int" if setting.kind is int else "config.float"
    return ConfigError(code, where=where, value=raw, low=low, high=high)


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


def _shown(raw: object) -> str:
    return json.dumps(raw, default=str, ensure_ascii=False)[:_SHOWN]
