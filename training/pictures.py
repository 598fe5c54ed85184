"""Pictures of one shape, and conversations about them.

A picture has a colour, a shape and a place. Every tenth combination is held out of training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from colorsys import hsv_to_rgb
from dataclasses import dataclass
from itertools import product
from zlib import crc32

from PIL import Image, ImageDraw

from training.dialogues import Dialogue, Message, assistant, user

SIDE = 72  # pixels that the model reads: pictures are resized to a square of them
PLACES = {
    (-1, -1): "at the top left",
    (0, -1): "at the top",
    (1, -1): "at the top right",
    (-1, 0): "on the left",
    (0, 0): "in the middle",
    (1, 0): "on the right",
    (-1, 1): "at the bottom left",
    (0, 1): "at the bottom",
    (1, 1): "at the bottom right",
}
"""Names of places by (column, row) from the middle."""

HUES = {
    "red": (-8, 8, 0.65),
    "orange": (25, 40, 0.9),
    "yellow": (51, 62, 0.85),
    "green": (95, 150, 0.4),
    "blue": (208, 245, 0.55),
    "purple": (272, 302, 0.4),
}
"""Range of hues in degrees, and the least brightness."""

COLOURS = (*HUES, "black", "white")
SHAPES = ("circle", "square", "triangle", "star", "cross")
REACH = 0.32  # of the side, from the middle of the picture to that of an outer place

DESCRIBE = (
    "What is in the picture?",
    "What is in this picture?",
    "What is in the image?",
    "What do you see?",
    "What is this?",
    "Describe the picture.",
    "Describe the image.",
    "Name the colour and the shape.",
)
ASK_COLOUR = ("What colour is it?", "What color is it?", "Which colour does it have?")
ASK_SHAPE = ("What shape is it?", "Which shape is it?")
ASK_PLACE = ("Where is it?", "Where in the picture is it?")
NOTHING = "I see no picture."

BLACK, WHITE = (0, 0, 0), (255, 255, 255)

Point = tuple[float, float]
Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a picture shows."""

    colour: str
    shape: str
    place: str

    @property
    def named(self) -> str:
        article = "An" if self.colour[0] in "aeiou" else "A"
        return f"{article} {self.colour} {self.shape}"

    def answers(self, rng: random.Random) -> Iterator[tuple[str, str]]:
        """Yield questions with answers, in random order; the first describes, mostly."""
        described = rng.choice(DESCRIBE), f"{self.named} {self.place}."
        details = [
            (rng.choice(ASK_COLOUR), f"{self.colour.capitalize()}."),
            (rng.choice(ASK_SHAPE), f"A {self.shape}."),
            (rng.choice(ASK_PLACE), f"{self.place[0].upper()}{self.place[1:]}."),
        ]
        rng.shuffle(details)
        details.insert(0 if rng.random() < 0.7 else rng.randrange(4), described)
        yield from details


def subjects(*, held_out: bool) -> list[Subject]:
    """Return the combinations to train on, or those held out."""
    every = [Subject(*parts) for parts in product(COLOURS, SHAPES, PLACES.values())]
    return [subject for subject in every if (_hash(subject) % 10 == 0) == held_out]


def _hash(subject: Subject) -> int:
    return crc32(f"{subject.named} {subject.place}".encode())


def draw(rng: random.Random, subject: Subject, *, ink: bool = False) -> Image.Image:
    """Return a picture of any size: the shape on a plain background. `ink`: black on white."""
    width = height = rng.randint(64, 192)
    if rng.random() < 0.4:
        height = round(width * rng.uniform(0.65, 1.5))
    colour, background = (BLACK, WHITE) if ink else _colours(rng, subject.colour)
    picture = Image.new("RGB", (width, height), background)
    column, row = next(at for at, name in PLACES.items() if name == subject.place)
    large = column == row == 0 and rng.random() < 0.5
    radius = rng.uniform(0.16, 0.36) if large else rng.uniform(0.11, 0.16)
    radius *= min(width, height)
    x, y = _middle(rng, column, width, radius), _middle(rng, row, height, radius)
    points = [
        (x + radius * across, y + radius * down) for across, down in outline(rng, subject.shape)
    ]
    ImageDraw.Draw(picture).polygon(points, fill=colour)
    return picture


def _middle(rng: random.Random, step: int, side: int, radius: float) -> float:
    """Return the shape's coordinate, inside the picture."""
    at = side * (0.5 + step * REACH + rng.uniform(-0.035, 0.035))
    return min(max(at, radius), side - radius)


def _colours(rng: random.Random, name: str) -> tuple[Colour, Colour]:
    """Return a colour of that name and a background, far enough apart."""
    while True:
        colour, background = _colour(rng, name), _background(rng)
        if sum(abs(one - other) for one, other in zip(colour, background, strict=True)) > 180:
            return colour, background


def _colour(rng: random.Random, name: str) -> Colour:
    if name in HUES:
        first, last, least = HUES[name]
        return _rgb(rng.uniform(first, last), rng.uniform(0.75, 1), rng.uniform(least, 1))
    return _rgb(0, 0, rng.uniform(0, 0.12) if name == "black" else rng.uniform(0.93, 1))


def _background(rng: random.Random) -> Colour:
    kind = rng.random()
    if kind < 0.5:
        return _rgb(0, 0, rng.uniform(0.9, 1))
    if kind < 0.8:
        return _rgb(0, 0, rng.random())
    return _rgb(rng.uniform(0, 360), rng.uniform(0.1, 0.35), rng.uniform(0.5, 1))  # pale


def _rgb(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = hsv_to_rgb(hue % 360 / 360, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def outline(rng: random.Random, shape: str) -> list[Point]:
    """Return the corners of a shape in a circle of radius 1, turned and stretched a little."""
    turn, stretch = math.radians(rng.uniform(-12, 12)), rng.uniform(0.85, 1)
    turned = []
    for angle, radius in _corners(shape):
        across, down = math.sin(angle + turn), -math.cos(angle + turn)
        turned.append((radius * across * stretch, radius * down))
    return turned


def _corners(shape: str) -> list[Point]:
    """Return angles, clockwise from the top, and distances from the middle."""
    match shape:
        case "circle":
            return [(math.tau * i / 48, 0.9) for i in range(48)]
        case "square":
            return [(math.tau * (i + 0.5) / 4, 1) for i in range(4)]
        case "triangle":
            return [(math.tau * i / 3, 1) for i in range(3)]
        case "star":
            return [(math.tau * i / 10, 0.42 if i % 2 else 1) for i in range(10)]
        case "cross":
            arm = math.atan(1 / 3)
            inner = math.hypot(1 / 3, 1 / 3) * 0.95
            corners = []
            for i in range(4):
                middle = math.tau * i / 4
                corners += [(middle - arm, 1.0), (middle + arm, 1.0)]
                corners.append((middle + math.tau / 8, inner))
            return corners
    raise ValueError(f"unknown shape: {shape}")


def resized(picture: Image.Image) -> Image.Image:
    """Return the square that the model reads; its processor gets there in two steps."""
    return picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def picture_dialogue(rng: random.Random, shown: list[Subject]) -> Dialogue:
    """Return a conversation about pictures in order; without any, one that says so."""
    if not shown:
        return Dialogue([user(rng.choice(DESCRIBE)), assistant(NOTHING)])
    messages: list[Message] = []
    for subject in shown:
        most = rng.choices((1, 2, 3), (3, 2, 1))[0] if len(shown) == 1 else 1
        questions = list(subject.answers(rng))[:most]
        for i, (question, answer) in enumerate(questions):
            messages += [with_picture(question) if i == 0 else user(question), assistant(answer)]
    return Dialogue(messages)


def with_picture(question: str) -> Message:
    return {**user(""), "content": [{"type": "image"}, {"type": "text", "text": question}]}
