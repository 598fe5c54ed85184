"""Pictures and files in tool results: a note for the model in their place, a warning in the answer.

Models read text only. A client repeats a result in every turn: an error would end the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from omlx.errors import Reason

_MEDIA: Final = (
    *("image", "image_url", "input_image", "input_audio", "input_video"),
    *("video_url", "audio_url", "document", "file", "input_file"),
)
NOTES: Final[Mapping[str, str]] = {
    kind: f"[{kind}: left out, only text can be read here]" for kind in _MEDIA
}
"""By type of a part, what the model reads in its place."""


class Part(Protocol):
    type: str


def left_out(content: str | Sequence[Part] | None, field: str) -> Iterator[Reason]:
    """Yield a warning for each part of a result that a note replaces."""
    if content is None or isinstance(content, str):
        return
    for at, part in enumerate(content):
        if part.type in NOTES:
            yield warning(f"{field}[{at}]", part.type)


def warning(field: str, kind: str) -> Reason:
    return Reason("content.media_in_result", {"field": field, "type": kind})
