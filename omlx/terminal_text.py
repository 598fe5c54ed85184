"""Escapes for untrusted text: a terminal would obey its control characters."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

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
