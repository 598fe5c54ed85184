"""What became of a request, noted on its ASGI scope for the access log: its stream, its error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.types import Scope

_NOTES: Final = "omlx.notes"


def note(scope: Scope, outcome: object) -> None:
    """Add what the request became."""
    scope.setdefault(_NOTES, []).append(outcome)


def notes(scope: Scope) -> Sequence[object]:
    """Return what was noted so far, in order."""
    noted: list[object] = scope.setdefault(_NOTES, [])
    return noted
