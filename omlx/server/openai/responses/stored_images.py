"""Images and files of stored responses: each data URI is held once, JSON has its name in its place.

Every response stores the conversation up to its end, so that an image would be stored with each
turn.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

_FIELDS: Final = ("url", "image_url", "file_data")
_PREFIX: Final = "omlx-image:"
_NAME: Final = re.compile(rb"omlx-image:[0-9a-f]{64}")


class StoredImages:
    """`nbytes`: of all that are held."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._uris: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    def hold(self, values: Sequence[Any]) -> tuple[list[bytes], tuple[str, ...]]:
        """Return values as JSON with names in place of data URIs, and the names, for `release`."""
        texts = list(map(encoded, values))
        if not any(b'"data:' in text for text in texts):
            return texts, ()
        names: dict[str, None] = {}

        def named(uri: str) -> str:
            if not uri.startswith("data:"):
                return uri
            name = f"{_PREFIX}{sha256(uri.encode(errors='surrogatepass')).hexdigest()}"
            if name not in self._uris:
                self._uris[name] = uri
                self.nbytes += len(uri)
            names[name] = None
            return name

        replaced = [encoded(_replaced(value, named)) for value in values]
        self._holders.update(names.keys())
        return replaced, tuple(names)

    def uris(self, names: Iterable[str]) -> dict[str, str]:
        """Return the data URIs of these images, by name."""
        return {name: self._uris[name] for name in names}

    def adopt(self, texts: Iterable[bytes], uris: Mapping[str, str]) -> tuple[str, ...]:
        """Hold those of `uris` that texts of `hold` name, and return the names, for `release`."""
        named = set(_NAME.findall(b" ".join(texts)))
        names = tuple(sorted({name.decode() for name in named} & uris.keys()))
        for name in names:
            if name not in self._uris:
                self._uris[name] = uris[name]
                self.nbytes += len(uris[name])
        self._holders.update(names)
        return names

    def restored(self, value: Any) -> Any:
        """Return a value of `hold`, read from its JSON, as it was."""
        if not self._uris:
            return value
        return _replaced(value, lambda name: self._uris.get(name, name))

    def release(self, names: Iterable[str]) -> list[str]:
        """Return those that no text needs any more."""
        dropped = []
        for name in names:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                self.nbytes -= len(self._uris.pop(name))
                dropped.append(name)
        return dropped


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with the fields of images and files changed."""
    if isinstance(value, list):
        return [_replaced(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {}
    for key, item in value.items():
        is_data = key in _FIELDS and isinstance(item, str)
        copy[key] = change(item) if is_data else _replaced(item, change)
    return copy
