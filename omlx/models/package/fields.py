"""Typed access to JSON objects; errors name the path of the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omlx.errors import ModelError, Reason


class Fields:
    """One JSON object of a file; nested objects share its `warnings`."""

    def __init__(
        self, values: Mapping[str, Any], path: str = "", warnings: list[Reason] | None = None
    ) -> None:
        self._values = values
        self._path = path
        self.warnings: list[Reason] = [] if warnings is None else warnings

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def at(self, key: str = "") -> str:
        """Return the dotted path of a field."""
        return ".".join(part for part in (self._path, key) if part)

    def required(self, key: str) -> Fields:
        """Return the object itself. Raises ModelError if it lacks the key."""
        if self._values.get(key) is None:
            raise ModelError("package.missing", at=self.at(key))
        return self

    def object(self, key: str) -> Fields | None:
        value = self._of_type(key, dict, "package.object")
        return None if value is None else Fields(value, self.at(key), self.warnings)

    def text(self, key: str) -> str | None:
        value: str | None = self._of_type(key, str, "package.text")
        return value

    def number(self, key: str, low: int, high: int) -> int | None:
        """Return an integer field. Raises ModelError outside `low` to `high`."""
        value: int | None = self._of_type(key, int, "package.number")
        if value is not None and not low <= value <= high:
            raise ModelError("package.range", at=self.at(key), value=value, low=low, high=high)
        return value

    def warn_except(self, *known: str) -> None:
        """Warn of keys that are not `known`."""
        unknown = [key for key in self._values if key not in known]
        self.warnings += [Reason("package.unknown_key", {"at": self.at(key)}) for key in unknown]

    def _of_type(self, key: str, kind: type, code: str) -> Any:
        """Return a field of that type, None if it is missing. Raises ModelError with `code`."""
        value = self._values.get(key)
        is_bool_for_int = kind is int and isinstance(value, bool)
        if value is not None and (not isinstance(value, kind) or is_bool_for_int):
            raise ModelError(code, at=self.at(key))
        return value
