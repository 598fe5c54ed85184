"""Notes in place of what no model reads: images in tool results, recordings, files.

A client repeats a result in every turn: an error would end the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from omlx.errors import Reason
from omlx.server.request.media.parts import FILES, MEDIA

NOTES: Final[Mapping[str, str]] = {
    kind: f"[{kind}: left out, only text can be read here]" for kind in MEDIA | FILES
}
"""By type of a part, what the model reads in its place."""


def warning(field: str, kind: str) -> Reason:
    return Reason("content.media_in_result", {"field": field, "type": kind})
