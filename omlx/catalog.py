"""Text for people: the catalog of sentences by code, and escapes for untrusted text.

The catalog is `locales/*.json`: one flat object per language. Entries missing in a language are
taken from English. A code without an entry is returned with its parameters: a missing sentence is
visible and raises no exception.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = "en"


def data_dir(name: str) -> Path:
    """Return the folder of shipped data: in a wheel inside the package, in a checkout beside it."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@cache
def languages() -> tuple[str, ...]:
    names = (path.stem for path in data_dir("locales").glob("*.json"))
    return tuple(sorted(names, key=lambda name: (name != SOURCE, name)))


@cache
def catalog(language: str = SOURCE) -> Mapping[str, str]:
    """Return the entries of a language. Raises FileNotFoundError for an unknown language."""
    entries: dict[str, str] = json.loads(
        (data_dir("locales") / f"{language}.json").read_text(encoding="utf-8")
    )
    return entries if language == SOURCE else {**catalog(), **entries}


def sentence(code: str, params: Mapping[str, object], language: str = SOURCE) -> str:
    template = catalog(language).get(code)
    if template is None:
        return " ".join([code, *(f"{key}={value}" for key, value in params.items())])
    return template.format_map(params)


_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control and format characters, surrogates, line and paragraph breaks."""

_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except line feed and tab, direction overrides, and surrogates."""


def escaped(text: str) -> str:
    """Return `text` with control characters and line breaks as `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE:
        return char
    return char.encode("unicode_escape").decode()


def escaped_lines(text: str) -> str:
    """Return `text` with line breaks and tabs, and further control characters escaped.

    Format characters stay, for emoji are joined by them, except those of the writing direction.
    """
    return "".join(_escape(char) if _OBEYED.match(char) else char for char in text)
