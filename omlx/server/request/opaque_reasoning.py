"""Reasoning that is not shown, encoded in a field that clients send back unread (a signature,
"encrypted" content).

It is not secret: anyone who runs the server can read it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

SHOWN: Final = "omlx"
"""The field's value where the reasoning itself is shown."""
_PREFIX: Final = "omlx."


def encode(reasoning: str) -> str:
    return _PREFIX + b64encode(reasoning.encode("utf-8", "replace")).decode()


def decode(shown: str, opaque: str | None) -> str:
    """The reasoning of a block that a client sends back: the shown text if there is one."""
    if shown or opaque is None or not opaque.startswith(_PREFIX):
        return shown
    try:
        return b64decode(opaque.removeprefix(_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
