"""Images of a prompt: where they are, the positions of their tokens, what a vision tower reads.

An image token has an id below -1, made of the image's name and the token's place in it. So prompts
are equal where their images are, and everything that compares ids needs to know nothing of images.
Pure Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

_IDS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Tokens [start, stop) of a prompt are features of an image, from its feature `at` on.

    `image` is the image's name: the hash of its bytes and of its preprocessing. `grid` (rows,
    columns) is set where positions have two axes (M-RoPE); the span is then the whole image.
    """

    start: int
    stop: int
    image: str
    at: int = 0
    grid: tuple[int, int] | None = None

    @property
    def shift(self) -> int:
        """Positions behind the span minus the count of tokens; mostly negative."""
        if self.grid is None:
            return 0
        return max(self.grid) - (self.stop - self.start)


def image_ids(image: str, start: int, stop: int) -> tuple[int, ...]:
    """Return the ids of features [start, stop) of an image."""
    first = int.from_bytes(blake2b(image.encode(), digest_size=8).digest(), "big")
    return tuple(-2 - (first + i) % _IDS for i in range(start, stop))


def position_shift(spans: Iterable[ImageSpan], at: int) -> int:
    """Return what the position of token `at`, outside of all spans, is ahead of `at`."""
    return sum(span.shift for span in spans if span.stop <= at)


def spans_within(spans: Iterable[ImageSpan], start: int, stop: int) -> list[ImageSpan]:
    """Return the spans that tokens [start, stop) show in part or in full."""
    return [span for span in spans if span.start < stop and span.stop > start]


def positions(spans: Sequence[ImageSpan], start: int, stop: int) -> list[list[int]] | None:
    """Return the positions of tokens [start, stop) on the axes time, row and column.

    None where all three are the count of tokens plus one number. The spans are in order. Source:
    M-RoPE, arXiv 2409.12191, section 2.1.
    """
    shown = spans_within(spans, start, stop)
    if not any(span.grid for span in shown):
        return None
    axes: list[list[int]] = [[], [], []]
    shift, at = position_shift(spans, start), start
    for span in shown:
        first, last = max(at, span.start), min(stop, span.stop)
        _count(axes, at + shift, first + shift)
        if span.grid is None:
            _count(axes, first + shift, last + shift)
        else:
            origin, columns = span.start + shift, span.grid[1]
            for i in range(first - span.start, last - span.start):
                for axis, offset in zip(axes, (0, i // columns, i % columns), strict=True):
                    axis.append(origin + offset)
        shift, at = shift + span.shift, last
    _count(axes, at + shift, stop + shift)
    return axes


def _count(axes: list[list[int]], start: int, stop: int) -> None:
    for axis in axes:
        axis.extend(range(start, stop))


def words(tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if token >= 0]


def words_between(
    tokens: Sequence[int], spans: Sequence[ImageSpan], start: int, stop: int
) -> list[int]:
    """Return words [start, stop) of `tokens`, counted without image tokens.

    Takes no longer than a slice where they lie behind the last span.
    """
    if not spans:
        return list(tokens[start:stop])
    hidden = sum(span.stop - span.start for span in spans)
    if start + hidden >= spans[-1].stop:
        return list(tokens[start + hidden : stop + hidden])
    return words(tokens)[start:stop]


def words_before(
    tokens: Sequence[int], spans: Sequence[ImageSpan], stop: int, count: int
) -> tuple[int, ...]:
    """Return the last `count` words before token `stop`, or fewer. `stop` is behind all spans, if
    there are any.
    """
    if not count:
        return ()
    start = max(0, stop - count)
    if not spans or start >= spans[-1].stop:
        return tuple(tokens[start:stop])
    return tuple(words(tokens[:stop])[-count:])


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """A decoded, resized image. Equal names mean equal arrays.

    `name` is a hash of the file's bytes and of the preprocessing. `arrays` are numpy arrays under
    the names of the family's processor. A tower reads `patches` patches and makes `features`
    features of them, one for each image token. `grid` is the (rows, columns) of the features where
    positions have two axes. `nbytes` is the size of the arrays.
    """

    name: str
    arrays: Mapping[str, Any] = field(compare=False, repr=False)
    patches: int
    features: int
    grid: tuple[int, int] | None = None
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class TowerFacts:
    """Facts of a tower for the scheduler; it computes an image in `steps` steps.

    `patch_cost` is the work of one patch in tokens of prefill, without attention, which adds the
    share `attention` of it for each patch that a patch attends to, at most `attended`.
    `patch_bytes` bounds the activations of one patch, `pair_bytes` are those of two patches of
    which one attends to the other, `feature_bytes` is the size of one feature.
    `whole`: the text model sees all of an image at once, so that no pass may end inside one.
    """

    steps: int = 1
    patch_cost: float = 1.0
    attention: float = 0.0
    attended: int = 1 << 31
    patch_bytes: int = 0
    feature_bytes: int = 0
    pair_bytes: int = 0
    whole: bool = False

    def step_cost(self, patches: int) -> float:
        """Return the work of one step for an image, in tokens of prefill."""
        attention = self.attention * min(patches, self.attended)
        return patches * self.patch_cost * (1 + attention) / self.steps

    def activation_bytes(self, patches: int) -> int:
        """Return the bytes of one step for an image, which it frees at its end."""
        return patches * (self.patch_bytes + min(patches, self.attended) * self.pair_bytes)
