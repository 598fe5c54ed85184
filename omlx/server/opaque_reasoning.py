"""Reasoning that is not shown travels inside of a field that clients bring back without looking into it: a signature,
or what the API calls encrypted. It hides nothing: whoever runs the server sees it all anyway."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

SHOWN: Final = "omlx"
_HELD: Final = "omlx."


def hold(thinking: str) -> str:
    return _HELD + b64encode(thinking.encode("utf-8", "replace")).decode()


def thought(shown: str, held: str | None) -> str:
    """What a block that came back was about."""
    if shown or held is None or not held.startswith(_HELD):
        return shown
    try:
        return b64decode(held.removeprefix(_HELD), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
