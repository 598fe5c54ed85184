"""Named API keys: `keys.json` in the home folder, with the hash of each key, never the key.

    {"format": …, "keys": [{"name": "laptop", "sha256": "…", "ending": "x3Fa", "models": ["org/*"],
                            "requests_per_minute": 60, "created": "2026-03-14T09:26:53Z"}]}

Keys are 256 random bits, so that a plain hash of a key cannot be inverted.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictInt, ValidationError

from omlx.errors import BadRequest, ConfigError, Conflict, NotFound
from omlx.settings.file import locked, read, write

FILE: Final = "keys.json"
EVERY_MODEL: Final = "*"
MAX_RATE: Final = 100_000
"""Requests per minute — the rate limiter keeps as many times in memory."""
RESERVED: Final = frozenset({"api_key", "dashboard"})
"""Names under which statistics count the key of the settings, and the dashboard."""

_PREFIX: Final = "sk-omlx-"
"""Prefix of keys — some programs require `sk-`; scanners for secrets detect keys by prefix."""
_KEY_BYTES: Final = 32
_ENDING: Final = 4
_NAME: Final = re.compile(r"[\w.@-]{1,64}")
_MAX_PATTERNS: Final = 200

Pattern = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S+$")]


class NamedKey(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    ending: str  # last characters of the key, by which its owner recognises the key
    # Patterns of the models that the key may use.
    models: Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=_MAX_PATTERNS)]
    requests_per_minute: Annotated[StrictInt, Field(ge=1, le=MAX_RATE)] | None = None
    created: AwareDatetime

    @property
    def may_use_all(self) -> bool:
        return EVERY_MODEL in self.models

    def record(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"sha256"})


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[NamedKey] = []


class KeyFile:
    """Reader and writer of the named keys in the folder `home`. All methods block on the file."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / FILE

    def read(self) -> Sequence[NamedKey]:
        """Return the keys, the oldest first. Raises ConfigError for a file of any other content."""
        content = read(self.path)
        if content.note is not None:
            raise self._invalid(str(content.note.params.get("detail", "format")))
        try:
            keys = _Keys.model_validate(dict(content.values)).keys
        except ValidationError as error:
            problem: Any = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise self._invalid(f"{place}: {problem['msg']}") from error
        names = [key.name for key in keys]
        for key in keys:
            if not is_name(key.name) or names.count(key.name) > 1:
                raise self._invalid(f"name: {key.name!r}")
        return keys

    def add(
        self, name: str, models: Sequence[str] = (EVERY_MODEL,), rate: int | None = None
    ) -> str:
        """Make a key, store its hash, and return the key. `rate` is in requests per minute.

        Raises BadRequest for invalid values, Conflict for a name that is taken, and ConfigError for
        a file of other content.
        """
        if not is_name(name):
            raise BadRequest("keys.name", param="name", name=name)
        key = f"{_PREFIX}{secrets.token_urlsafe(_KEY_BYTES)}"
        try:
            added = NamedKey(
                name=name,
                sha256=digest(key.encode()),
                ending=key[-_ENDING:],
                models=tuple(models),
                requests_per_minute=rate,
                created=datetime.now(UTC).replace(microsecond=0),
            )
        except ValidationError as error:
            raise _refused(error) from error
        with locked(self.home):
            keys = self.read()
            if any(known.name == name for known in keys):
                raise Conflict("keys.taken", param="name", name=name)
            self._write([*keys, added])
        return key

    def revoke(self, name: str) -> None:
        """Remove a key. Raises NotFound, and ConfigError for a file of other content."""
        with locked(self.home):
            keys = self.read()
            remaining = [key for key in keys if key.name != name]
            if len(remaining) == len(keys):
                raise NotFound("keys.not_found", name=name)
            self._write(remaining)

    def _write(self, keys: Sequence[NamedKey]) -> None:
        write(self.path, {"keys": [key.model_dump(mode="json") for key in keys]})

    def _invalid(self, detail: str) -> ConfigError:
        return ConfigError("keys.invalid", file=str(self.path), detail=detail)


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in RESERVED


def digest(key: bytes) -> str:
    return sha256(key).hexdigest()


def _refused(error: ValidationError) -> BadRequest:
    field = str(error.errors()[0]["loc"][0])
    if field == "requests_per_minute":
        return BadRequest("keys.rate_range", param=field, high=MAX_RATE)
    return BadRequest("keys.models", param="models", limit=_MAX_PATTERNS)
