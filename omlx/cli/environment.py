"""Variables that omlx gives its own process: libraries fetch nothing behind the user's back and do not talk over us."""

from __future__ import annotations

import os
from typing import Final

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_added: set[str] = set()


def settle(*, online: bool) -> None:
    """Set what the user has not set. `online` is for commands whose work is to fetch."""
    for name, value in ENVIRONMENT.items():
        if name not in os.environ and not (online and name == "HF_HUB_OFFLINE"):
            os.environ[name] = value
            _added.add(name)


def environment() -> dict[str, str]:
    """The variables as the user set them."""
    return {name: value for name, value in os.environ.items() if name not in _added}
