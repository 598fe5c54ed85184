"""Images in prompts: templates write a marker for each, which the model's eye replaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from omlx.engine.image import ImageSpan, PreparedImage
from omlx.errors import BadRequest
from omlx.text.encode import encode

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Message: TypeAlias = Mapping[str, Any]
Images: TypeAlias = Sequence[PreparedImage]
Spans: TypeAlias = tuple[ImageSpan, ...]

IMAGE: Final = "image"
"""The type of a part that holds a `PreparedImage` under the same name."""


class ImagePlacer(Protocol):
    """What an eye does with the text of a prompt: see `omlx.models.eyes.eye.Eye`."""

    @property
    def marker(self) -> str: ...

    @property
    def text_marker(self) -> str | None: ...

    def expand(self, text: str, images: Images) -> str: ...

    def place(self, ids: Sequence[int], images: Images) -> tuple[tuple[int, ...], Spans]: ...


def texts_of(content: object) -> Iterator[str]:
    """Yield the texts of a message's content."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if "text" in part)


def separate_images(
    messages: Sequence[Message], text_marker: str | None = None
) -> tuple[list[Message], tuple[PreparedImage, ...]]:
    """Return messages as templates read them, and their images in order.

    With `text_marker` contents are texts, in which it stands for an image.
    """
    shown, images = list[Message](), list[PreparedImage]()
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            images += (part["image"] for part in content if part["type"] == IMAGE)
            parts = [{"type": IMAGE} if part["type"] == IMAGE else part for part in content]
            message = {**message, "content": parts}
            if text_marker is not None:
                message["content"] = "".join(part.get("text", text_marker) for part in parts)
        shown.append(message)
    return shown, tuple(images)


def encode_images(
    tokenizer: TokenizerWrapper,
    text: str,
    images: Images,
    placer: ImagePlacer,
    context_length: int,
) -> tuple[tuple[int, ...], Spans]:
    """Return the ids of a rendered prompt with those of its images, and where these are.

    Raises BadRequest unless the template has written one marker for each image.
    """
    if placer.marker not in text:
        raise BadRequest("image.template", param="messages")
    expanded = placer.expand(text, images)
    return placer.place(encode(tokenizer, expanded, context_length, special=False), images)


def check_markers(messages: Sequence[Message], variables: Mapping[str, Any], marker: str) -> None:
    """Raise BadRequest for a marker that a text contains: it is no place for an image."""
    texts = [text for message in messages for text in texts_of(message["content"])]
    if any(marker in text for text in (*texts, str(variables))):
        raise BadRequest("image.marker", param="messages")
