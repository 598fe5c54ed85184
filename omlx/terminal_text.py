"""Escapes for untrusted text: a terminal would obey its control characters."""

from __future__ import annotations

import unicodedata
from typing import Final

_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control and format characters, surrogates, line and paragraph breaks."""


def escaped(text: str) -> str:
    """Return `text` with control characters and line breaks as `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE:
        return char
    return char.encode("unicode_escape").decode()
