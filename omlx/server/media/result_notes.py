"""What a model cannot read of tool results: a note in its place, a warning in the answer.

A client repeats a result in every turn: an error would end the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from omlx.errors import Reason
from omlx.server.media.parts import IMAGES

_FILES: Final = (
    *("input_audio", "input_video", "video_url", "audio_url"),
    *("document", "file", "input_file"),
)
NOTES: Final[Mapping[str, str]] = {
    kind: f"[{kind}: left out, only text can be read here]" for kind in (*IMAGES, *_FILES)
}
"""By type of a part, what the model reads in its place."""
FILE_NOTES: Final = {kind: NOTES[kind] for kind in _FILES}
"""Notes in place of what no model here reads."""


class Part(Protocol):
    type: str


def left_out(content: str | Sequence[Part] | None, field: str) -> Iterator[Reason]:
    """Yield a warning for each part of a result that a note replaces, whatever the model; images
    are for the models that see."""
    if content is None or isinstance(content, str):
        return
    for at, part in enumerate(content):
        if part.type in FILE_NOTES:
            yield warning(f"{field}[{at}]", part.type)


def warning(field: str, kind: str) -> Reason:
    return Reason("content.media_in_result", {"field": field, "type": kind})
