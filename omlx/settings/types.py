"""Types of settings: pydantic reads the JSON form of a value, and refuses any other type.

Validators raise ConfigError without `where`, which `omlx.settings.layers` adds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator

from omlx.errors import ConfigError

ANY: Final = "*"
_SCHEME: Final = r"[a-z][a-z0-9+.-]*"
_HOST: Final = r"(?:\[[0-9a-f:.]+\]|[^\s/?#@:*\[\]]+)"
_PATTERN: Final = re.compile(rf"\*|null|{_SCHEME}://(?:\*|{_HOST}(?::(?:\d+|\*))?)/?")


def allows(patterns: Iterable[str], origin: str) -> bool:
    """Whether any pattern matches an Origin header. Letter case does not count."""
    return any(_matches(pattern.lower().rstrip("/"), origin.lower()) for pattern in patterns)


def _matches(pattern: str, origin: str) -> bool:
    if pattern in (ANY, origin):
        return True
    if pattern.endswith("://*"):
        scheme = re.escape(pattern.removesuffix(ANY))
        return re.fullmatch(rf"{scheme}{_HOST}(?::\d+)?", origin) is not None
    if pattern.endswith(":*"):
        return (
            re.fullmatch(rf"{re.escape(pattern.removesuffix(':*'))}(?::\d+)?", origin) is not None
        )
    return False


SHOWN: Final = 80
"""Characters — length of a rejected value in an error."""

PAIR: Final = "PATTERN=MODEL"

SERVER: Final = "NAME=COMMAND"

_SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
"""Name of a tool server: prefix of tool names."""

MAX_SECRET: Final = 4096
"""Characters — servers read at most 64 KB of a head, many proxies 8 KB."""

RENDERER_ARGUMENTS: Final = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation"}
    | {"documents", "kwargs", "max_length", "messages", "padding", "return_assistant_tokens_mask"}
    | {"return_dict", "return_tensors", "sanitize_control_tokens", "self", "tokenize"}
    | {"tokenizer_kwargs", "tools", "truncation"}
)
"""Arguments of the chat template renderer: no template variable can have these names."""

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_MAX_SIZE: Final = 1 << 62


class Form(StrEnum):
    """Control for a value in the dashboard's forms."""

    TEXT = "text"
    PARAGRAPHS = "paragraphs"
    SECRET = "secret"
    NUMBER = "number"
    SIZE = "size"
    SWITCH = "switch"
    CHOICE = "choice"
    OBJECT = "object"
    LINES = "lines"
    MAP = "map"


def shown(raw: object) -> str:
    return json.dumps(raw, default=str, ensure_ascii=False)[:SHOWN]


def size_text(nbytes: int) -> str:
    """Format a size in its shortest exact form: `2GB`. Units are powers of 1024."""
    for unit, scale in reversed(_UNITS.items()):
        if unit and nbytes >= scale and nbytes % scale == 0:
            return f"{nbytes // scale}{unit.upper()}B"
    return str(nbytes)


def _text(raw: str) -> str:
    if not raw.strip():
        raise ConfigError("config.empty")
    return raw


def _secret(raw: str) -> str:
    _text(raw)
    # HTTP headers carry no other text. The error omits the secret.
    if not (raw.isascii() and raw.isprintable() and raw == raw.strip()) or len(raw) > MAX_SECRET:
        raise ConfigError("config.secret", limit=MAX_SECRET)
    return raw


def _size(raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    match = _SIZE.fullmatch(raw)
    if match is None:
        raise ConfigError("config.size", value=raw)
    return int(min(float(match[1]) * _UNITS[match[2].lower()], _MAX_SIZE))


def _size_or_off(raw: object) -> object:
    return 0 if isinstance(raw, str) and raw.strip().lower() == "off" else _size(raw)


def _choice_of_number(raw: object) -> object:
    return str(raw) if type(raw) is int else raw


def _folder(raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    path = os.path.expanduser(_text(raw))
    if path.startswith("~"):
        raise ConfigError("config.home_unknown", value=raw)
    return Path(path).absolute()


def _object(raw: dict[str, Any]) -> dict[str, Any]:
    try:
        # Python's parser accepts NaN and Infinity, which JSON does not have.
        json.dumps(raw, allow_nan=False)
    except ValueError:
        raise ConfigError("config.object_text", value=shown(raw)) from None
    for name in raw:
        if name in RENDERER_ARGUMENTS:
            raise ConfigError("config.reserved", name=name)
    return raw


def _listed(raw: object) -> object:
    return tuple(raw) if isinstance(raw, list) else raw


def _pairs(parts: tuple[str, ...]) -> tuple[str, ...]:
    for part in parts:
        if not all(part.partition("=")):
            raise ConfigError("config.map", value=part, form=PAIR)
    return parts


def _origins(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern.lower()) is None:
            raise ConfigError("config.origin", value=pattern)
    return patterns


def _tool_servers(servers: tuple[str, ...]) -> tuple[str, ...]:
    names = [server.partition("=")[0] for server in servers]
    for server, name in zip(servers, names, strict=True):
        known = _SERVER_NAME.fullmatch(name) and name != "web" and names.count(name) == 1
        if not known or not server.partition("=")[2].strip():
            raise ConfigError("config.tool_server", value=shown(server), form=SERVER)
    return servers


def _web_address(raw: str) -> str:
    if not raw.startswith(("http://", "https://")):
        raise ConfigError("config.web_address", value=raw)
    return raw


Text: TypeAlias = Annotated[str, AfterValidator(_text)]
Paragraphs: TypeAlias = Annotated[str, Form.PARAGRAPHS, AfterValidator(_text)]
Secret: TypeAlias = Annotated[str, Form.SECRET, AfterValidator(_secret)]
Size: TypeAlias = Annotated[int, Form.SIZE, BeforeValidator(_size)]
SizeOrOff: TypeAlias = Annotated[int, Form.SIZE, BeforeValidator(_size_or_off)]
KVBits: TypeAlias = Annotated[Literal["off", "8", "4"], BeforeValidator(_choice_of_number)]
Folder: TypeAlias = Annotated[Path, BeforeValidator(_folder)]
TemplateVariables: TypeAlias = Annotated[dict[str, Any], AfterValidator(_object)]
Folders: TypeAlias = Annotated[tuple[Folder, ...], Form.LINES, BeforeValidator(_listed)]
_Listed: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(str.strip)], ...], BeforeValidator(_listed)
]
ToolServers: TypeAlias = Annotated[_Listed, Form.LINES, AfterValidator(_tool_servers)]
WebAddress: TypeAlias = Annotated[str, AfterValidator(_web_address)]
Texts: TypeAlias = Annotated[_Listed, Form.LINES]
Origins: TypeAlias = Annotated[_Listed, Form.LINES, AfterValidator(_origins)]
Pairs: TypeAlias = Annotated[_Listed, Form.MAP, AfterValidator(_pairs)]
