"""What processes of tests have in common."""

from __future__ import annotations

import os
from pathlib import Path


def environment(home: Path, **more: str) -> dict[str, str]:
    """The variables of a process of its own, with `more`: none that configure omlx or the hub.

    Idle servers measure nothing: they would take the processor from other tests.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMLX_", "HF_"))
    }
    # A server on a terminal opens the dashboard.
    return {**kept, "HOME": str(home), "OMLX_CALIBRATE": "off", "BROWSER": "true", **more}
