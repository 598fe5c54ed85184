"""The prompts of a trial: a few kinds of text, another prompt of each kind in every round.

They range from code edits, most of which prompt lookup predicts, to free prose, of which it
predicts little. The files are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from omlx.measure.texts import read_sections

TEXTS: Final = Path(__file__).resolve().parent / "texts"


class Kind(StrEnum):
    """A kind of text. `CONVERSATION`: the model's last conversation; `PICTURE`: questions about a
    picture of the user's. Both are held in memory only.
    """

    CODE = "code"
    EDIT = "edit"
    DATA = "data"
    PROSE = "prose"
    CONVERSATION = "conversation"
    PICTURE = "picture"


WRITTEN: Final = (Kind.CODE, Kind.EDIT, Kind.DATA, Kind.PROSE)
"""The kinds whose texts come with omlx."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt. `greedy`: decode at temperature 0, else as the model's settings say.

    `ends`: stop tokens end the answer. Free prose runs to its full length, because a small model
    would say goodbye too soon to be measured.
    """

    text: str
    greedy: bool
    ends: bool


def question(kind: Kind, number: int) -> Question:
    """Return the question of round `number`, counted from 0, for a kind with texts."""
    texts = read_sections(TEXTS / f"{kind}.txt")
    prose = kind is Kind.PROSE
    return Question(texts[number % len(texts)], greedy=not prose, ends=not prose)
