"""Origins of web pages, and the patterns by which settings allow them.

An origin is `scheme://host` or `scheme://host:port`, or `null`. A pattern may have `*` for
everything, for the whole host (`app://*`) or for the port (`http://localhost:*`), and nowhere else:
`http://localhost*` would match `http://localhost.evil.example`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

ANY: Final = "*"
_SCHEME: Final = r"[a-z][a-z0-9+.-]*"
_HOST: Final = r"(?:\[[0-9a-f:.]+\]|[^\s/?#@:*\[\]]+)"
_PATTERN: Final = re.compile(rf"\*|null|{_SCHEME}://(?:\*|{_HOST}(?::(?:\d+|\*))?)/?")


def is_pattern(text: str) -> bool:
    return _PATTERN.fullmatch(text.lower()) is not None


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
